package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"log"
	"os/exec"
	"reflect"
	"strings"
)

// markers reads the `+name=value` comments of types and fields from the module sources.
type markers struct {
	types  map[string]map[string]string // "pkg.Type" -> marker -> value
	fields map[string]map[string]string // "pkg.Type.Field" -> marker -> value
	read   map[string]bool
}

func newMarkers() *markers {
	return &markers{types: map[string]map[string]string{}, fields: map[string]map[string]string{}, read: map[string]bool{}}
}

func (m *markers) ofType(typ reflect.Type) map[string]string {
	m.load(typ.PkgPath())
	return m.types[typ.PkgPath()+"."+typ.Name()]
}

// flags returns the table flags from the markers of one field: list type and keys, atomic maps and structs, and the
// default that list keys may have.
func (m *markers) flags(owner reflect.Type, f reflect.StructField) []string {
	m.load(owner.PkgPath())
	found := m.fields[owner.PkgPath()+"."+owner.Name()+"."+f.Name]
	var flags []string
	if found["listType"] != "" {
		flag := "l=" + found["listType"]
		if found["listMapKey"] != "" {
			flag += ":" + found["listMapKey"]
		}
		flags = append(flags, flag)
	}
	for _, marker := range []string{"mapType", "structType"} {
		if found[marker] != "" {
			flags = append(flags, "s="+found[marker])
		}
	}
	if d := found["default"]; d != "" && d != "{}" && !strings.ContainsAny(d, " \t") && !strings.HasPrefix(d, "ref(") {
		flags = append(flags, "d="+d)
	}
	return flags
}

func (m *markers) load(pkg string) {
	if m.read[pkg] {
		return
	}
	m.read[pkg] = true
	dir, err := exec.Command("go", "list", "-f", "{{.Dir}}", pkg).Output()
	if err != nil {
		log.Fatalf("go list %s: %v", pkg, err)
	}
	parsed, err := parser.ParseDir(token.NewFileSet(), strings.TrimSpace(string(dir)), nil, parser.ParseComments)
	if err != nil {
		log.Fatal(err)
	}
	for _, p := range parsed {
		for _, file := range p.Files {
			m.file(pkg, file)
		}
	}
}

func (m *markers) file(pkg string, file *ast.File) {
	for _, decl := range file.Decls {
		gen, ok := decl.(*ast.GenDecl)
		if !ok || gen.Tok != token.TYPE {
			continue
		}
		for _, spec := range gen.Specs {
			ts := spec.(*ast.TypeSpec)
			name := pkg + "." + ts.Name.Name
			doc := ts.Doc
			if doc == nil {
				doc = gen.Doc
			}
			m.types[name] = parse(doc)
			st, ok := ts.Type.(*ast.StructType)
			if !ok {
				continue
			}
			for _, field := range st.Fields.List {
				for _, ident := range field.Names {
					m.fields[name+"."+ident.Name] = parse(field.Doc)
				}
			}
		}
	}
}

func parse(doc *ast.CommentGroup) map[string]string {
	found := map[string]string{}
	if doc == nil {
		return found
	}
	for _, comment := range doc.List {
		text := strings.TrimSpace(strings.TrimPrefix(comment.Text, "//"))
		name, value, ok := strings.Cut(strings.TrimPrefix(text, "+"), "=")
		if !ok || !strings.HasPrefix(text, "+") {
			continue
		}
		if name == "listMapKey" && found[name] != "" {
			value = found[name] + "," + value
		}
		found[name] = value
	}
	return found
}
