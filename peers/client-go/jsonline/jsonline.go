// Package jsonline prints events as lines of JSON. Lines of concurrent goroutines are never mixed.
package jsonline

import (
	"encoding/json"
	"io"
	"sync"
	"time"
)

// Writer serializes lines. Its zero value is not usable; create one with New.
type Writer struct {
	mu  sync.Mutex
	out *json.Encoder
}

// New returns a Writer on out.
func New(out io.Writer) *Writer {
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	return &Writer{out: encoder}
}

// Print writes one line. Errors are ignored, because an election must continue when the harness has exited.
func (w *Writer) Print(line any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.out.Encode(line)
}

// Stamp is a time in both formats of event lines.
type Stamp struct {
	// Time is RFC 3339 with microseconds.
	Time string `json:"time"`
	// T is nanoseconds since the epoch.
	T int64 `json:"t"`
}

// At formats a time.
func At(now time.Time) Stamp {
	return Stamp{Time: now.UTC().Format("2006-01-02T15:04:05.000000Z"), T: now.UnixNano()}
}
