package main

import (
	"encoding/json"
	"math/rand"
	"sort"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
)

type patchCase struct {
	Type   string          `json:"type"`
	Target json.RawMessage `json:"target"`
	Patch  json.RawMessage `json:"patch"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  string          `json:"error,omitempty"`
}

// patches emits JSON merge patches and JSON patches of small random documents.
func patches(r *rand.Rand, emit func(any)) {
	for i := 0; i < 150**factor; i++ {
		c := patchCase{Type: "merge", Target: marshal(document(r, 3)), Patch: marshal(document(r, 3))}
		result, err := jsonpatch.MergePatch(c.Target, c.Patch)
		c.Result, c.Error = result, text(err)
		emit(c)
		c = patchCase{Type: "json", Target: c.Target, Patch: marshal(operations(r))}
		patch, err := jsonpatch.DecodePatch(c.Patch)
		if err == nil {
			c.Result, err = patch.Apply(c.Target)
		}
		c.Error = text(err)
		emit(c)
	}
}

func document(r *rand.Rand, depth int) map[string]any {
	doc := map[string]any{}
	for _, key := range subset(r, "a", "b", "c", "x/y") {
		doc[key] = value(r, depth)
	}
	return doc
}

func value(r *rand.Rand, depth int) any {
	switch n := r.Intn(7); {
	case n < 2 && depth > 0:
		return document(r, depth-1)
	case n == 2 && depth > 0:
		list := []any{}
		for i := r.Intn(3); i > 0; i-- {
			list = append(list, pick[any](r, 1, "x", true))
		}
		return list
	case n == 3:
		return nil
	default:
		return pick[any](r, 1, "x", false, 2.5)
	}
}

func operations(r *rand.Rand) []map[string]any {
	list := []map[string]any{}
	for i := 1 + r.Intn(3); i > 0; i-- {
		op := map[string]any{"op": pick(r, "add", "remove", "replace", "move", "copy", "test"), "path": pointer(r)}
		switch op["op"] {
		case "move", "copy":
			op["from"] = pointer(r)
		case "remove":
		default:
			op["value"] = pick[any](r, 1, "x", map[string]any{"a": 1}, []any{"x"})
		}
		list = append(list, op)
	}
	return list
}

func pointer(r *rand.Rand) string {
	p := ""
	for i := 1 + r.Intn(2); i > 0; i-- {
		p += "/" + pick(r, "a", "b", "c", "x~1y", "0", "1", "-")
	}
	return p
}

func keys(m map[string]any) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

func sorted(m map[string]any) []any {
	values := make([]any, 0, len(m))
	for _, name := range keys(m) {
		values = append(values, m[name])
	}
	return values
}
