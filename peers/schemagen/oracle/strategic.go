package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

type strategicCase struct {
	Target json.RawMessage `json:"target"`
	Patch  json.RawMessage `json:"patch"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  string          `json:"error,omitempty"`
}

// strategic computes patches between two pods and applies them to a third one, as if another client had changed the
// object in between. Some patches are broken on purpose.
func strategic(r *rand.Rand, emit func(any)) {
	for i := 0; i < 100**factor; i++ {
		before, after := pod(r), pod(r)
		target := before
		if r.Intn(2) == 0 {
			target = pod(r)
		}
		patch, err := strategicpatch.CreateTwoWayMergePatch(marshal(before), marshal(after), core.Pod{})
		if err != nil {
			continue
		}
		if r.Intn(3) == 0 {
			patch = tamper(r, patch)
		}
		result, err := strategicpatch.StrategicMergePatch(marshal(target), patch, core.Pod{})
		c := strategicCase{Target: marshal(target), Patch: patch, Error: text(err)}
		if bytes.Contains(result, []byte(`"$`)) {
			// Upstream keeps directives inside new elements as fields, and turns a deletion into an element. The server under
			// test does not imitate that.
			continue
		}
		if err == nil {
			// The result is decoded into the Go type, as in the server, which removes unknown fields.
			var typed core.Pod
			if json.Unmarshal(result, &typed) != nil {
				continue
			}
			c.Result = marshal(typed)
		}
		emit(c)
	}
}

func pod(r *rand.Rand) *core.Pod {
	p := &core.Pod{ObjectMeta: meta.ObjectMeta{Name: "p", Labels: labels(r)}}
	for _, name := range subset(r, "x.io/a", "x.io/b", "x.io/c", "x.io/d") {
		p.Finalizers = append(p.Finalizers, name)
	}
	for _, uid := range subset(r, "1", "2", "3") {
		p.OwnerReferences = append(p.OwnerReferences, meta.OwnerReference{UID: types.UID(uid), Name: pick(r, "m", "n")})
	}
	for _, name := range append(subset(r, "b", "c", "d"), "a") {
		c := core.Container{Name: name, Image: pick(r, "x", "y"), Args: subset(r, "1", "2")}
		for _, env := range subset(r, "E", "F", "G") {
			c.Env = append(c.Env, core.EnvVar{Name: env, Value: pick(r, "", "v", "w")})
		}
		for _, port := range subset(r, "80", "81", "82") {
			var number int32
			fmt.Sscan(port, &number)
			c.Ports = append(c.Ports, core.ContainerPort{ContainerPort: number, Name: pick(r, "", "web")})
		}
		p.Spec.Containers = append(p.Spec.Containers, c)
	}
	for _, name := range subset(r, "v", "w", "x") {
		v := core.Volume{Name: name}
		switch r.Intn(3) {
		case 0:
			v.EmptyDir = &core.EmptyDirVolumeSource{}
		case 1:
			v.HostPath = &core.HostPathVolumeSource{Path: pick(r, "/", "/a")}
		default:
			v.ConfigMap = &core.ConfigMapVolumeSource{LocalObjectReference: core.LocalObjectReference{Name: "c"}}
		}
		p.Spec.Volumes = append(p.Spec.Volumes, v)
	}
	for _, name := range subset(r, "s", "t") {
		p.Spec.ImagePullSecrets = append(p.Spec.ImagePullSecrets, core.LocalObjectReference{Name: name})
	}
	for _, key := range subset(r, "k", "l") {
		p.Spec.Tolerations = append(p.Spec.Tolerations, core.Toleration{Key: key})
	}
	p.Spec.NodeSelector = labels(r)
	if r.Intn(2) == 0 {
		p.Spec.SecurityContext = &core.PodSecurityContext{SupplementalGroups: []int64{1, int64(r.Intn(3))}}
	}
	return p
}

func labels(r *rand.Rand) map[string]string {
	found := map[string]string{}
	for _, key := range subset(r, "a", "b", "c") {
		found[key] = pick(r, "1", "2")
	}
	return found
}

// subset returns some of the words in random order.
func subset(r *rand.Rand, words ...string) []string {
	r.Shuffle(len(words), func(i, j int) { words[i], words[j] = words[j], words[i] })
	return words[:r.Intn(len(words)+1)]
}

// tamper removes something from a patch or adds a directive to it.
func tamper(r *rand.Rand, patch []byte) []byte {
	var doc map[string]any
	if json.Unmarshal(patch, &doc) != nil {
		return patch
	}
	maps := []map[string]any{doc}
	for i := 0; i < len(maps); i++ {
		for _, v := range sorted(maps[i]) {
			switch v := v.(type) {
			case map[string]any:
				maps = append(maps, v)
			case []any:
				for _, e := range v {
					if m, ok := e.(map[string]any); ok {
						maps = append(maps, m)
					}
				}
			}
		}
	}
	m := maps[r.Intn(len(maps))]
	switch r.Intn(5) {
	case 0:
		m["$patch"] = pick(r, "delete", "replace", "merge", "other")
	case 1:
		m["$retainKeys"] = []any{"name", "image", "emptyDir"}
	case 2:
		for _, key := range keys(m) {
			delete(m, key)
			break
		}
	case 3:
		m["$deleteFromPrimitiveList/finalizers"] = []any{"x.io/a", "x.io/b"}
	default:
		m["image"] = nil
	}
	return marshal(doc)
}
