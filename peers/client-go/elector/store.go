package main

import (
	"bufio"
	"fmt"
	"net"
	"sync"
)

// store is an external store that rejects the tokens of older terms and records the attempts.
type store struct {
	mu      sync.Mutex
	conn    net.Conn
	answers *bufio.Reader
}

func openStore(address string) (*store, error) {
	if address == "" {
		return nil, nil
	}
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	return &store{conn: conn, answers: bufio.NewReader(conn)}, nil
}

// apply sends one effect and waits for the response.
func (s *store) apply(election, token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := fmt.Fprintf(s.conn, "%s %s\n", election, token); err == nil {
		_, _ = s.answers.ReadString('\n')
	}
}
