package main

import (
	"context"
	"fmt"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"tenure/peers/client-go/jsonline"
)

// event is one line of `tenure elect --events json`.
type event struct {
	jsonline.Stamp
	Event       string `json:"event"`
	Election    string `json:"election"`
	Leader      string `json:"leader"`
	Self        string `json:"self"`
	Token       string `json:"token,omitempty"`
	Transitions int    `json:"transitions"`
	Until       int64  `json:"until,omitempty"`
}

// candidate contends for one election until its context ends, for any number of terms.
type candidate struct {
	options
	client   kubernetes.Interface
	store    *store
	out      *jsonline.Writer
	election string
}

func (c *candidate) validate() error {
	_, _, err := c.elector()
	return err
}

func (c *candidate) contend(ctx context.Context) {
	for ctx.Err() == nil {
		elector, _, err := c.elector()
		if err != nil {
			panic(fmt.Sprintf("valid at the start, rejected now: %v", err))
		}
		elector.Run(ctx)
	}
}

// elector creates a new elector, because an elector serves only one term.
func (c *candidate) elector() (*leaderelection.LeaderElector, *watchedLock, error) {
	lock, err := resourcelock.New(c.lock, c.namespace, c.election, c.client.CoreV1(), c.client.CoordinationV1(),
		resourcelock.ResourceLockConfig{Identity: c.id})
	if err != nil {
		return nil, nil, err
	}
	watched := &watchedLock{Interface: lock}
	term := &term{candidate: c, lock: watched, ended: make(chan struct{})}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Name:            c.election,
		Lock:            watched,
		LeaseDuration:   c.leaseDuration,
		RenewDeadline:   c.renewDeadline,
		RetryPeriod:     c.retryPeriod,
		ReleaseOnCancel: c.release,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: term.work,
			OnStoppedLeading: term.stopped,
			OnNewLeader:      term.observed,
		},
	})
	return elector, watched, err
}

// term is the state that the callbacks of one elector share.
type term struct {
	*candidate
	lock  *watchedLock
	ended chan struct{}
	// until is written before ended is closed, and is read only after that.
	until time.Time
}

// work is the guarded work. It depends on its context alone, like the work of other users of client-go.
func (t *term) work(ctx context.Context) {
	t.print(time.Now(), "acquired", t.id, time.Time{})
	for t.tick(ctx) {
	}
	t.until = time.Now()
	close(t.ended)
}

// tick does one step of work and returns whether the context allows another.
func (t *term) tick(ctx context.Context) bool {
	if t.workTick == 0 {
		<-ctx.Done()
		return false
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(t.workTick):
	}
	// The line contains the start time of the step. If the process is suspended before the check, it makes the check later
	// than that.
	began := time.Now()
	if ctx.Err() != nil {
		return false
	}
	t.print(began, "working", t.id, time.Time{})
	if t.store != nil {
		token, _ := t.lock.term()
		t.store.apply(t.election, token)
	}
	return true
}

// stopped runs at the end of every elector, even if it never led.
func (t *term) stopped() {
	if !t.lock.led() {
		return
	}
	<-t.ended
	kind := "lost"
	if t.lock.released() {
		kind = "released"
	}
	t.print(time.Now(), kind, t.lock.holder(), t.until)
}

func (t *term) observed(leader string) {
	t.print(time.Now(), "observed", leader, time.Time{})
}

func (t *term) print(now time.Time, kind, leader string, until time.Time) {
	token, transitions := t.lock.term()
	line := event{
		Stamp:       jsonline.At(now),
		Event:       kind,
		Election:    t.election,
		Leader:      leader,
		Self:        t.id,
		Transitions: transitions,
	}
	if kind != "observed" {
		line.Token = token
	}
	if !until.IsZero() {
		line.Until = until.UnixNano()
	}
	t.out.Print(line)
}
