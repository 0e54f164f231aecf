package main

import (
	"bytes"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/kubernetes/scheme"

	"tenure/peers/client-go/jsonline"
)

// settling is the time in which a candidate reads the initial state; requests are counted afterwards.
const settling = 10 * time.Second

// counter counts requests as they are sent, by their effect on the lock.
type counter struct {
	started       time.Time
	reads, writes atomic.Int64
}

type stats struct {
	jsonline.Stamp
	Event   string  `json:"event"`
	Self    string  `json:"self"`
	Seconds float64 `json:"seconds"`
	Reads   int64   `json:"reads"`
	Writes  int64   `json:"writes"`
}

func (c *counter) line(self string) stats {
	now := time.Now()
	return stats{
		Stamp:   jsonline.At(now),
		Event:   "stats",
		Self:    self,
		Seconds: (now.Sub(c.started) - settling).Seconds(),
		Reads:   c.reads.Load(),
		Writes:  c.writes.Load(),
	}
}

func (c *counter) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		switch {
		case time.Since(c.started) < settling:
		case request.Method == http.MethodGet:
			c.reads.Add(1)
		default:
			c.writes.Add(1)
		}
		response, err := next.RoundTrip(request)
		if err != nil || response.StatusCode >= 300 {
			return response, err
		}
		if wanted, ok := request.Context().Value(versionsKey{}).(*versions); ok && request.Method != http.MethodGet {
			err = wanted.read(response)
		}
		return response, err
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }

// versionsKey requests, through the context of a request, the versions of the written objects.
type versionsKey struct{}

// versions are the resourceVersions of the objects written under one context, in order: a multi lock writes two.
type versions struct {
	mu   sync.Mutex
	list []string
}

func (v *versions) first() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.list) == 0 {
		return ""
	}
	return v.list[0]
}

// read extracts the version from a response, JSON or protobuf, and restores the body.
func (v *versions) read(response *http.Response) error {
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	response.Body.Close()
	response.Body = io.NopCloser(bytes.NewReader(body))
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return err
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.list = append(v.list, accessor.GetResourceVersion())
	return nil
}
