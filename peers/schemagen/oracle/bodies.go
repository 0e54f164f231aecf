package main

import (
	"encoding/json"
	"math/rand"
	"strings"

	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kjson "k8s.io/apimachinery/pkg/runtime/serializer/json"
)

type bodyCase struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Body       string          `json:"body"`
	Strict     string          `json:"strict,omitempty"`
	Error      string          `json:"error,omitempty"`
	Result     json.RawMessage `json:"result,omitempty"`
}

// bodies emits JSON texts with wrong, unknown and duplicate fields.
func bodies(r *rand.Rand, emit func(any)) {
	scheme := runtime.NewScheme()
	lease, pod := &coordination.Lease{}, &core.Pod{}
	leaseKind := schema.GroupVersionKind{Group: "coordination.k8s.io", Version: "v1", Kind: "Lease"}
	podKind := schema.GroupVersionKind{Version: "v1", Kind: "Pod"}
	scheme.AddKnownTypeWithName(leaseKind, lease)
	scheme.AddKnownTypeWithName(podKind, pod)
	strict := kjson.NewSerializerWithOptions(kjson.DefaultMetaFactory, scheme, scheme, kjson.SerializerOptions{Strict: true})
	for i := 0; i < 120**factor; i++ {
		kind, body := leaseKind, leaseBody(r)
		if r.Intn(2) == 0 {
			kind, body = podKind, podBody(r)
		}
		version, name := kind.ToAPIVersionAndKind()
		c := bodyCase{APIVersion: version, Kind: name, Body: body}
		obj, _, err := strict.Decode([]byte(body), &kind, nil)
		switch {
		case err == nil || runtime.IsStrictDecodingError(err):
			c.Strict, c.Result = text(err), marshal(obj)
		default:
			c.Error = err.Error()
		}
		emit(c)
	}
}

func fieldsOf(r *rand.Rand, fields ...string) string {
	chosen := subset(r, fields...)
	if len(chosen) > 0 && r.Intn(4) == 0 {
		chosen = append(chosen, chosen[0])
	}
	return "{" + strings.Join(chosen, ",") + "}"
}

func metadata(r *rand.Rand) string {
	return `"metadata":` + fieldsOf(r, `"name":"n"`, `"labels":{"a":"b","a":"c"}`, `"labels":{"a":null}`, `"finalizers":[]`, `"creationTimestamp":null`,
		`"generation":0`, `"ownerReferences":[{"uid":"u","nope":1},{}]`, `"extra":{"x":{"y":1,"y":2}}`, `"Name":"m"`, `"annotations":{}`)
}

func leaseBody(r *rand.Rand) string {
	spec := `"spec":` + fieldsOf(r, `"holderIdentity":""`, `"holderIdentity":null`, `"leaseDurationSeconds":15`, `"leaseTransitions":0`, `"bogus":[]`,
		`"renewTime":"2026-01-02T03:04:05.000006Z"`, `"acquireTime":null`)
	if r.Intn(4) == 0 {
		spec = `"spec":` + fieldsOf(r, `"holderIdentity":5`, `"leaseDurationSeconds":"15"`, `"leaseTransitions":3000000000`, `"renewTime":"2026-01-02T03:04:05Z"`,
			`"renewTime":7`, `"leaseTransitions":1.5`, `"leaseTransitions":{}`)
	}
	return "{" + strings.Join([]string{`"kind":"Lease"`, `"apiVersion":"coordination.k8s.io/v1"`, metadata(r), spec}, ",") + "}"
}

func podBody(r *rand.Rand) string {
	container := func() string {
		return fieldsOf(r, `"name":"c"`, `"image":""`, `"ports":[{"containerPort":80,"x":1}]`, `"resources":{"limits":{"cpu":"0.5","cpu":1}}`, `"env":[{"name":"E","valueFrom":{"fieldRef":{"bad":1}}}]`,
			`"livenessProbe":{"httpGet":{"port":"http"},"zzz":1}`, `"args":null`, `"tty":false`, `"stdin":true`)
	}
	spec := `"spec":` + fieldsOf(r, `"containers":[`+container()+`,`+container()+`]`, `"volumes":[{"name":"v","emptyDir":{}},{"name":"w","configMap":{"name":"c","q":1}}]`,
		`"nodeSelector":{}`, `"hostNetwork":false`, `"terminationGracePeriodSeconds":0`, `"unknown":1`, `"tolerations":[{}]`)
	return "{" + strings.Join([]string{`"kind":"Pod"`, `"apiVersion":"v1"`, metadata(r), spec}, ",") + "}"
}
