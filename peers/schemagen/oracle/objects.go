package main

import (
	"bytes"
	"encoding/json"
	"log"
	"math/rand"
	"reflect"
	"time"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/randfill"

	"tenure.dev/peers/schemagen/kinds"
)

// object is one random object: the JSON and the protobuf that a client would send, and the JSON that a server returns
// after storing it as protobuf.
type object struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Written    json.RawMessage `json:"written"`
	Protobuf   []byte          `json:"protobuf"`
	Stored     json.RawMessage `json:"stored"`
}

func objects(r *rand.Rand, emit func(any)) {
	for _, entry := range kinds.All {
		for i := 0; i < *factor; i++ {
			if o, ok := newObject(r, entry); ok {
				emit(o)
			}
		}
	}
}

func newObject(r *rand.Rand, entry kinds.Entry) (object, bool) {
	obj, ok := reflect.New(entry.Type()).Interface().(runtime.Object)
	if !ok {
		return object{}, false
	}
	gvk := schema.GroupVersionKind{Group: entry.Group, Version: entry.Version, Kind: entry.Kind()}
	filler(r).Fill(obj)
	obj.GetObjectKind().SetGroupVersionKind(gvk)
	scheme := runtime.NewScheme()
	scheme.AddKnownTypeWithName(gvk, obj)
	codec := protobuf.NewSerializer(scheme, scheme)
	var wire bytes.Buffer
	if err := codec.Encode(obj, &wire); err != nil {
		log.Fatalf("%v: %v", gvk, err)
	}
	stored, _, err := codec.Decode(wire.Bytes(), nil, nil)
	if err != nil {
		log.Fatalf("%v: %v", gvk, err)
	}
	stored.GetObjectKind().SetGroupVersionKind(gvk)
	return object{gvk.GroupVersion().String(), gvk.Kind, marshal(obj), wire.Bytes(), marshal(stored)}, true
}

func marshal(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		log.Fatal(err)
	}
	return b
}

// filler fills objects sparsely, so that absent, zero and present values all occur.
func filler(r *rand.Rand) *randfill.Filler {
	return randfill.New().RandSource(rand.NewSource(r.Int63())).NilChance(.6).NumElements(0, 2).MaxDepth(14).Funcs(
		func(s *string, c randfill.Continue) {
			*s = pick(c.Rand, "", "a", "b", "ä", "x/y", "\"", "long text\n")
		},
		func(n *int32, c randfill.Continue) { *n = pick[int32](c.Rand, 0, 1, -1, 1<<31-1) },
		func(n *int64, c randfill.Continue) { *n = pick[int64](c.Rand, 0, 1, -1, 1<<53, -1<<62) },
		func(f *float64, c randfill.Continue) { *f = pick[float64](c.Rand, 0, 1, -2.5, 1e6) },
		func(b *[]byte, c randfill.Continue) { *b = pick(c.Rand, nil, []byte{}, []byte("x"), []byte{0, 255, 7}) },
		func(t *meta.Time, c randfill.Continue) {
			*t = pick(c.Rand, meta.Time{}, meta.Unix(0, 0), meta.Unix(1767323045, 999), meta.Unix(-5, 0))
		},
		func(t *meta.MicroTime, c randfill.Continue) {
			*t = pick(c.Rand, meta.MicroTime{}, meta.NewMicroTime(time.Unix(1767323045, 123456789)), meta.NewMicroTime(time.Unix(1, 0)))
		},
		// JSON cannot represent a pointer to the unset time, because it is null in JSON.
		func(t **meta.Time, c randfill.Continue) {
			*t = pick(c.Rand, nil, &meta.Time{Time: time.Unix(1767323045, 0)})
		},
		func(t **meta.MicroTime, c randfill.Continue) {
			*t = pick(c.Rand, nil, &meta.MicroTime{Time: time.Unix(1767323045, 123456789)})
		},
		func(q *resource.Quantity, c randfill.Continue) {
			*q = resource.MustParse(pick(c.Rand, "0", "1", "1.5Gi", "500m", "1024Mi", "1e3", "0.1", "3Ki", "1000k"))
		},
		func(i *intstr.IntOrString, c randfill.Continue) {
			*i = pick(c.Rand, intstr.FromInt32(0), intstr.FromInt32(-3), intstr.FromString(""), intstr.FromString("25%"))
		},
		func(f *meta.FieldsV1, c randfill.Continue) { f.Raw = []byte(pick(c.Rand, `{}`, `{"f:a":{".":{}}}`)) },
		func(e *runtime.RawExtension, c randfill.Continue) {
			e.Raw = []byte(pick(c.Rand, `{"apiVersion":"v1","kind":"X","n":null}`, `{}`))
		},
		func(j *apiextensions.JSON, c randfill.Continue) {
			j.Raw = []byte(pick(c.Rand, `1`, `"x"`, `{"a":[null]}`, `true`))
		},
		func(s *apiextensions.JSONSchemaPropsOrBool, c randfill.Continue) {
			if c.Bool() {
				s.Allows = c.Bool()
			} else {
				s.Allows, s.Schema = true, &apiextensions.JSONSchemaProps{Type: "string"}
			}
		},
		func(s *apiextensions.JSONSchemaPropsOrArray, c randfill.Continue) {
			if c.Bool() {
				s.Schema = &apiextensions.JSONSchemaProps{Type: "object"}
			} else {
				s.JSONSchemas = []apiextensions.JSONSchemaProps{{Type: "string"}, {}}
			}
		},
		func(s *apiextensions.JSONSchemaPropsOrStringArray, c randfill.Continue) {
			if c.Bool() {
				s.Schema = &apiextensions.JSONSchemaProps{Required: []string{"a"}}
			} else {
				s.Property = []string{"a", "b"}
			}
		},
	)
}
