// Package jsonline prints events as lines of JSON, whole lines even from many goroutines.
package jsonline

import (
	"encoding/json"
	"io"
	"sync"
	"time"
)

// Writer serialises lines. Its zero value is not usable: make one with New.
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

// Print writes one line. A harness that has gone away is no reason to stop an election, so errors are dropped.
func (w *Writer) Print(line any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.out.Encode(line)
}

// Stamp is a moment in both spellings that event lines carry.
type Stamp struct {
	// Time is RFC 3339 with microseconds.
	Time string `json:"time"`
	// T is nanoseconds since the epoch.
	T int64 `json:"t"`
}

// At spells a moment.
func At(now time.Time) Stamp {
	return Stamp{Time: now.UTC().Format("2006-01-02T15:04:05.000000Z"), T: now.UnixNano()}
}
