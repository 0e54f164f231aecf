// Command oracle writes the results of the real libraries for generated input, one JSON object per line and one file
// per topic. The tests of the API server compare with them. The same seed gives the same files.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"log"
	"math/rand"
	"os"
	"path/filepath"
)

var (
	out    = flag.String("out", "../../crates/apiserver/tests/fixtures/oracle", "folder to write to")
	seed   = flag.Int64("seed", 1, "seed of the generated input")
	factor = flag.Int("factor", 1, "multiple of the usual number of cases")
)

func main() {
	log.SetFlags(0)
	flag.Parse()
	if err := os.MkdirAll(*out, 0o755); err != nil {
		log.Fatal(err)
	}
	for name, topic := range map[string]func(*rand.Rand, func(any)){
		"objects": objects, "strategic": strategic, "selectors": selectors, "texts": texts, "bodies": bodies, "patches": patches,
	} {
		write(name, topic)
	}
}

func write(name string, topic func(*rand.Rand, func(any))) {
	file, err := os.Create(filepath.Join(*out, name+".jsonl"))
	if err != nil {
		log.Fatal(err)
	}
	defer file.Close()
	w := bufio.NewWriter(file)
	defer w.Flush()
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	topic(rand.New(rand.NewSource(*seed)), func(line any) {
		if err := enc.Encode(line); err != nil {
			log.Fatal(err)
		}
	})
}

// text returns the text of an error, empty without an error.
func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.Intn(len(of))] }
