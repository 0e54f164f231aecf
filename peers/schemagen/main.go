// Command schemagen writes the field table of the API server: one line per field of every message that is reachable
// from the kinds listed in package kinds. All facts come from the Go types themselves (struct tags, pointers) and from
// their marker comments.
package main

import (
	"bufio"
	"fmt"
	"log"
	"os"
	"reflect"
	"sort"
	"strings"

	"tenure.dev/peers/schemagen/kinds"
)

// table collects messages during the walk of the types.
type table struct {
	names    map[reflect.Type]string
	messages map[string][]string
	queue    []reflect.Type
	markers  *markers
}

func main() {
	log.SetFlags(0)
	t := &table{names: map[reflect.Type]string{}, messages: map[string][]string{}, markers: newMarkers()}
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	fmt.Fprintln(out, "# Written by peers/schemagen from k8s.io/api and friends; see schema/mod.rs for the format.")
	for _, k := range kinds.All {
		fmt.Fprintf(out, "=%s/%s/%s %s\n", k.Group, k.Version, k.Kind(), t.message(k.Type()))
	}
	for len(t.queue) > 0 {
		next := t.queue[0]
		t.queue = t.queue[1:]
		t.walk(next)
	}
	names := make([]string, 0, len(t.messages))
	for name := range t.messages {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		fmt.Fprintln(out, "@"+name)
		for _, line := range t.messages[name] {
			fmt.Fprintln(out, line)
		}
	}
}

// message returns the table's name of a struct type and ensures that the struct will be written.
func (t *table) message(typ reflect.Type) string {
	if name, ok := t.names[typ]; ok {
		return name
	}
	name := packageAlias(typ.PkgPath()) + "." + typ.Name()
	t.names[typ] = name
	t.queue = append(t.queue, typ)
	return name
}

func (t *table) walk(typ reflect.Type) {
	lines := []string{}
	if atomic := t.markers.ofType(typ)["structType"]; atomic != "" {
		lines = append(lines, "!s="+atomic)
	}
	t.messages[t.names[typ]] = append(lines, t.fields(typ)...)
}

func (t *table) fields(typ reflect.Type) []string {
	var lines []string
	for i := 0; i < typ.NumField(); i++ {
		f := typ.Field(i)
		if f.Type.Name() == "TypeMeta" && f.Anonymous {
			lines = append(lines, "apiVersion 0 string e", "kind 0 string e")
			continue
		}
		tag := strings.Split(f.Tag.Get("json"), ",")
		if tag[0] == "-" {
			continue
		}
		has := map[string]bool{}
		for _, option := range tag[1:] {
			has[option] = true
		}
		json, flags := tag[0], []string{}
		if json == "" && !f.Anonymous {
			json = f.Name
		}
		if json == "" {
			json = "-"
			flags = append(flags, "i")
		}
		if has["omitempty"] {
			flags = append(flags, "e")
		}
		if has["omitzero"] {
			flags = append(flags, "z")
		}
		if s := f.Tag.Get("patchStrategy"); s != "" {
			flags = append(flags, "p="+s)
		}
		if k := f.Tag.Get("patchMergeKey"); k != "" {
			flags = append(flags, "k="+k)
		}
		flags = append(flags, t.markers.flags(typ, f)...)
		number := "0"
		if parts := strings.Split(f.Tag.Get("protobuf"), ","); len(parts) > 1 {
			number = parts[1]
		}
		lines = append(lines, strings.TrimSpace(strings.Join([]string{
			json, number, t.typeName(f.Type), strings.Join(flags, " ")}, " ")))
	}
	return lines
}

// leaves contains the types with their own JSON form.
var leaves = map[string]string{
	"k8s.io/apimachinery/pkg/apis/meta/v1.Time":                                             "Time",
	"k8s.io/apimachinery/pkg/apis/meta/v1.MicroTime":                                        "MicroTime",
	"k8s.io/apimachinery/pkg/apis/meta/v1.Duration":                                         "Duration",
	"k8s.io/apimachinery/pkg/apis/meta/v1.FieldsV1":                                         "FieldsV1",
	"k8s.io/apimachinery/pkg/api/resource.Quantity":                                         "Quantity",
	"k8s.io/apimachinery/pkg/util/intstr.IntOrString":                                       "IntOrString",
	"k8s.io/apimachinery/pkg/runtime.RawExtension":                                          "Raw",
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1.JSON":                         "JSON",
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1.JSONSchemaPropsOrArray":       "SchemaOrArray",
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1.JSONSchemaPropsOrBool":        "SchemaOrBool",
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1.JSONSchemaPropsOrStringArray": "SchemaOrStrings",
}

type protoMessage interface{ Unmarshal([]byte) error }

var protoMessageType = reflect.TypeFor[protoMessage]()

func (t *table) typeName(typ reflect.Type) string {
	if leaf, ok := leaves[typ.PkgPath()+"."+typ.Name()]; ok {
		if leaf == "SchemaOrArray" {
			// The alternatives contain schemas, so their message must be in the table.
			t.message(typ.Field(0).Type.Elem())
		}
		return leaf
	}
	switch typ.Kind() {
	case reflect.Pointer:
		return "*" + t.typeName(typ.Elem())
	case reflect.Slice:
		if typ.Elem().Kind() == reflect.Uint8 {
			return "bytes"
		}
		if typ.Name() != "" && reflect.PointerTo(typ).Implements(protoMessageType) {
			// A named list is a message {1: repeated} on the wire.
			return "<>" + t.typeName(typ.Elem())
		}
		return "[]" + t.typeName(typ.Elem())
	case reflect.Map:
		if typ.Key().Kind() != reflect.String {
			log.Fatalf("map with %v keys", typ.Key())
		}
		return "{}" + t.typeName(typ.Elem())
	case reflect.Struct:
		return t.message(typ)
	case reflect.String, reflect.Bool, reflect.Int32, reflect.Int64, reflect.Uint32, reflect.Uint64, reflect.Float64:
		return typ.Kind().String()
	case reflect.Int:
		return "int64"
	}
	log.Fatalf("no table form for %v", typ)
	return ""
}

func packageAlias(path string) string {
	for _, prefix := range []string{
		"k8s.io/api/", "k8s.io/apimachinery/pkg/apis/", "k8s.io/apiextensions-apiserver/pkg/apis/", "k8s.io/apimachinery/pkg/",
	} {
		if rest, ok := strings.CutPrefix(path, prefix); ok {
			return rest
		}
	}
	return path
}
