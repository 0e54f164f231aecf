package main

import (
	"encoding/json"
	"math/rand"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/api/validation"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	klabels "k8s.io/apimachinery/pkg/labels"
	util "k8s.io/apimachinery/pkg/util/validation"
)

type textCase struct {
	Check  string   `json:"check"`
	Text   string   `json:"text"`
	Result string   `json:"result,omitempty"`
	Error  string   `json:"error,omitempty"`
	Errors []string `json:"errors,omitempty"`
}

type selectorCase struct {
	Check   string `json:"check"`
	Text    string `json:"text"`
	Error   string `json:"error,omitempty"`
	Matches []bool `json:"matches,omitempty"`
}

var labelSets = []map[string]string{
	{}, {"a": "1"}, {"a": "2", "b": ""}, {"a": "x", "in": "y"}, {"x.io/y": "1", "b": "z"}, {"a": "-3", "notin": "in"},
}

// selectors emits random sequences of tokens of the two selector languages.
func selectors(r *rand.Rand, emit func(any)) {
	words := []string{"a", "a", "b", "in", "notin", "(", ")", ",", ",", "=", "=", "==", "!=", "!", ">", "<", " ", " ", "1", "x", "x.io/y", "-", "A_b", `\`}
	for i := 0; i < 400**factor; i++ {
		var b strings.Builder
		for n := 1 + r.Intn(8); n > 0; n-- {
			b.WriteString(pick(r, words...))
		}
		if r.Intn(2) == 0 {
			emit(labelsCase(b.String()))
		} else {
			emit(fieldsCase(b.String()))
		}
	}
}

func labelsCase(in string) selectorCase {
	s, err := klabels.Parse(in)
	c := selectorCase{Check: "labels", Text: in, Error: text(err)}
	for _, set := range labelSets {
		if err == nil {
			c.Matches = append(c.Matches, s.Matches(klabels.Set(set)))
		}
	}
	return c
}

func fieldsCase(in string) selectorCase {
	s, err := fields.ParseSelector(in)
	c := selectorCase{Check: "fields", Text: in, Error: text(err)}
	for _, set := range labelSets {
		if err == nil {
			c.Matches = append(c.Matches, s.Matches(fields.Set(set)))
		}
	}
	return c
}

// texts emits names, quantities and times.
func texts(r *rand.Rand, emit func(any)) {
	names := map[string]func(string) []string{
		"subdomain": util.IsDNS1123Subdomain, "label": util.IsDNS1123Label, "label1035": util.IsDNS1035Label,
		"qualified": content.IsLabelKey, "value": content.IsLabelValue, "key": util.IsConfigMapKey, "segment": content.IsPathSegmentName,
		"generated": func(s string) []string { return validation.NameIsDNSSubdomain(s, true) },
	}
	checks := []string{"subdomain", "label", "label1035", "qualified", "value", "key", "segment", "generated"}
	for i := 0; i < 150**factor; i++ {
		name := word(r, "a", "b", "Z", "0", "-", ".", "..", "/", "_", "%", "ä", " ", strings.Repeat("x", 60), strings.Repeat("y.", 100))
		check := pick(r, checks...)
		emit(textCase{Check: check, Text: name, Errors: names[check](name)})

		amount := word(r, "1", "0", "5", "12", ".", "-", "+", "e", "E", "3", "k", "Ki", "M", "Mi", "Gi", "m", "n", "u", "i", "1024", "000")
		if strings.ContainsAny(amount, "eE") && len(amount) > 3 || !strings.ContainsAny(amount, "0123456789") {
			// Beyond exa, and without digits, upstream has unexpected results that no client relies on.
			amount = pick(r, "1e3", "3E", "1E2", "e", "12e-3", "")
		}
		if q, err := resource.ParseQuantity(amount); err != nil {
			emit(textCase{Check: "quantity", Text: amount, Error: err.Error()})
		} else {
			emit(textCase{Check: "quantity", Text: amount, Result: q.String()})
		}

		when := moment(r)
		var t meta.Time
		c := textCase{Check: "time", Text: when, Error: text(json.Unmarshal(marshal(when), &t))}
		if c.Error == "" {
			c.Result = string(marshal(t))
		}
		emit(c)
		var m meta.MicroTime
		c = textCase{Check: "micro", Text: when, Error: text(json.Unmarshal(marshal(when), &m))}
		if c.Error == "" {
			c.Result = string(marshal(m))
		}
		emit(c)
	}
}

func word(r *rand.Rand, parts ...string) string {
	var b strings.Builder
	for n := r.Intn(5); n >= 0; n-- {
		b.WriteString(pick(r, parts...))
	}
	return b.String()
}

// moment returns a text that is nearly a time: most parts are valid.
func moment(r *rand.Rand) string {
	mostly := func(right string, wrong ...string) string {
		if r.Intn(8) > 0 {
			return right
		}
		return pick(r, wrong...)
	}
	return mostly(pick(r, "2026", "0001", "1969"), "26", "10000", "x026") + mostly("-", "/", "") +
		mostly(pick(r, "01", "02", "12"), "1", "13", "00") + mostly("-", "") + mostly(pick(r, "01", "28"), "30", "31", "32", "00", "9") +
		mostly("T", " ", "t") + mostly(pick(r, "00", "23"), "24", "1") + mostly(":", "") + mostly("59", "60", "6") +
		mostly(":", "-") + mostly("05", "60", "7") + mostly(pick(r, "", ".123456"), ".1", ",123456", ".1234567", ".") +
		mostly(pick(r, "Z", "+01:30", "-00:01"), "", "z", "+0130", "+25:00", "+01:61", "Zx")
}
