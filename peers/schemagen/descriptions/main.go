// Command descriptions writes the texts that `kubectl explain` shows for the messages of the field table: descriptions,
// required fields and enum values. It reads them from the OpenAPI definitions that Kubernetes generates from its Go types, and
// fails if the definitions lack a field of the table.
//
// The output is a zlib stream. crates/apiserver/src/schema/descriptions.rs describes the text inside.
package main

import (
	"bytes"
	"compress/zlib"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
)

// source is the module with the generated definitions. Its version follows that of k8s.io/api in go.mod.
const source = "k8s.io/kubernetes@v1.37.1"

// leaves are the types of the table that are not messages, with the ends of their functions.
var leaves = map[string]string{
	"Time": "meta_v1_Time", "MicroTime": "meta_v1_MicroTime", "FieldsV1": "meta_v1_FieldsV1",
	"Quantity": "api_resource_Quantity", "IntOrString": "util_intstr_IntOrString", "Raw": "pkg_runtime_RawExtension",
	"JSON": "apiextensions_v1_JSON", "SchemaOrArray": "apiextensions_v1_JSONSchemaPropsOrArray",
	"SchemaOrBool":    "apiextensions_v1_JSONSchemaPropsOrBool",
	"SchemaOrStrings": "apiextensions_v1_JSONSchemaPropsOrStringArray",
}

// definition is the part of one generated function that the table does not have.
type definition struct {
	description string
	properties  map[string]property
}

type property struct {
	description string
	required    bool
	enum        []string
}

// message is one struct of the field table. Inlined structs are members of it with the name "-".
type message struct {
	fields []field
}

type field struct{ name, number, typ string }

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("usage: descriptions FIELDS.TXT > DESCRIPTIONS.ZLIB")
	}
	messages, kinds := readTable(os.Args[1])
	definitions := readDefinitions()
	var text bytes.Buffer
	missing := 0
	for _, name := range reachable(messages, kinds) {
		function := "_" + strings.NewReplacer("/", "_", ".", "_").Replace(name)
		if end, ok := leaves[name]; ok {
			function = "_" + end
		}
		found := definitions.find(function)
		if found == nil {
			log.Printf("no definition of %s", name)
			missing++
			continue
		}
		fmt.Fprintf(&text, "@%s %s\n", name, escape(found.description))
		for _, f := range flatten(messages, name) {
			p, ok := found.properties[f.name]
			if !ok {
				log.Printf("no property %s of %s", f.name, name)
				missing++
			}
			// Every kind has the same two fields without a wire number. They are described once, as those of TypeMeta.
			if f.number == "0" && name != "meta/v1.TypeMeta" && (f.name == "kind" || f.name == "apiVersion") {
				continue
			}
			flags := "-"
			if p.required {
				flags = "r"
			}
			for _, value := range p.enum {
				flags += "|" + value
			}
			if p.description != "" || flags != "-" {
				fmt.Fprintf(&text, "%s %s %s\n", f.name, flags, escape(p.description))
			}
		}
	}
	if missing > 0 {
		log.Fatalf("%d definitions are missing", missing)
	}
	out, err := zlib.NewWriterLevel(os.Stdout, zlib.BestCompression)
	if err == nil {
		_, err = out.Write(text.Bytes())
	}
	if err == nil {
		err = out.Close()
	}
	if err != nil {
		log.Fatal(err)
	}
	log.Printf("%d bytes of text", text.Len())
}

func escape(text string) string {
	return strings.NewReplacer("\\", "\\\\", "\n", "\\n").Replace(text)
}

func readTable(path string) (messages map[string]message, kinds []string) {
	bytes, err := os.ReadFile(path)
	if err != nil {
		log.Fatal(err)
	}
	messages = map[string]message{"meta/v1.TypeMeta": {fields: []field{{"apiVersion", "0", "string"}, {"kind", "0", "string"}}}}
	for leaf := range leaves {
		messages[leaf] = message{}
	}
	name := ""
	for _, line := range strings.Split(string(bytes), "\n") {
		words := strings.Fields(line)
		switch {
		case line == "" || line[0] == '#' || line[0] == '!':
		case line[0] == '=':
			kinds = append(kinds, words[1])
		case line[0] == '@':
			name = line[1:]
			messages[name] = message{}
		default:
			m := messages[name]
			m.fields = append(m.fields, field{words[0], words[1], strings.TrimLeft(words[2], "*[]{}<>")})
			messages[name] = m
		}
	}
	return messages, kinds
}

// reachable returns the messages and leaves that schemas refer to, sorted. An inlined struct is not one of them.
func reachable(messages map[string]message, kinds []string) []string {
	seen, queue := map[string]bool{}, append([]string{"meta/v1.TypeMeta"}, kinds...)
	for len(queue) > 0 {
		name := queue[0]
		queue = queue[1:]
		if _, ok := messages[name]; !ok || seen[name] {
			continue
		}
		seen[name] = true
		for _, f := range flatten(messages, name) {
			queue = append(queue, f.typ)
			if f.typ == "SchemaOrArray" {
				queue = append(queue, "apiextensions/v1.JSONSchemaProps")
			}
		}
	}
	names := make([]string, 0, len(seen))
	for name := range seen {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// flatten returns the fields of a message with those of its inlined members.
func flatten(messages map[string]message, name string) (fields []field) {
	for _, f := range messages[name].fields {
		if f.name == "-" {
			fields = append(fields, flatten(messages, f.typ)...)
		} else {
			fields = append(fields, f)
		}
	}
	return fields
}

type definitions map[string]*definition

// find returns the definition of the only function whose name ends like this.
func (d definitions) find(end string) *definition {
	var found *definition
	for name, definition := range d {
		if strings.HasSuffix(name, end) {
			if found != nil {
				log.Fatalf("two definitions end with %s", end)
			}
			found = definition
		}
	}
	return found
}

func readDefinitions() definitions {
	downloaded, err := exec.Command("go", "mod", "download", "-json", source).Output()
	if err != nil {
		log.Fatalf("go mod download %s: %v", source, err)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(downloaded, &module); err != nil {
		log.Fatal(err)
	}
	path := filepath.Join(module.Dir, "pkg/generated/openapi/zz_generated.openapi.go")
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		log.Fatal(err)
	}
	all := definitions{}
	for _, declared := range file.Decls {
		if function, ok := declared.(*ast.FuncDecl); ok && strings.HasPrefix(function.Name.Name, "schema_") {
			all[function.Name.Name] = define(function)
		}
	}
	return all
}

func define(function *ast.FuncDecl) *definition {
	var result definition
	// The first SchemaProps is that of the message. Definitions for both OpenAPI versions have the same description.
	props := first(function.Body, "SchemaProps")
	if props == nil {
		return &result
	}
	result.description = text(member(props, "Description"))
	result.properties = map[string]property{}
	if properties, ok := member(props, "Properties").(*ast.CompositeLit); ok {
		for _, element := range properties.Elts {
			pair := element.(*ast.KeyValueExpr)
			inner := first(pair.Value, "SchemaProps")
			p := property{}
			if inner != nil {
				p.description = text(member(inner, "Description"))
			}
			if enum := first(pair.Value, "Enum"); enum != nil {
				for _, value := range enum.(*ast.CompositeLit).Elts {
					p.enum = append(p.enum, text(value))
				}
			}
			result.properties[text(pair.Key)] = p
		}
	}
	if required, ok := member(props, "Required").(*ast.CompositeLit); ok {
		for _, name := range required.Elts {
			p := result.properties[text(name)]
			p.required = true
			result.properties[text(name)] = p
		}
	}
	return &result
}

// first returns the value of the first member with this name, at any depth.
func first(root ast.Node, name string) (found ast.Expr) {
	ast.Inspect(root, func(node ast.Node) bool {
		if pair, ok := node.(*ast.KeyValueExpr); ok && found == nil {
			if key, ok := pair.Key.(*ast.Ident); ok && key.Name == name {
				found = pair.Value
			}
		}
		return found == nil
	})
	return found
}

// member returns the value of a member of a struct literal.
func member(literal ast.Expr, name string) ast.Expr {
	for _, element := range literal.(*ast.CompositeLit).Elts {
		if pair, ok := element.(*ast.KeyValueExpr); ok {
			if key, ok := pair.Key.(*ast.Ident); ok && key.Name == name {
				return pair.Value
			}
		}
	}
	return nil
}

// text returns the value of a string literal, and "" for anything else.
func text(expression ast.Expr) string {
	literal, ok := expression.(*ast.BasicLit)
	if !ok || literal.Kind != token.STRING {
		return ""
	}
	value, err := strconv.Unquote(literal.Value)
	if err != nil {
		log.Fatal(err)
	}
	return value
}
