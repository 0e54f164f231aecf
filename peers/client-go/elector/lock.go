package main

import (
	"context"
	"sync"

	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// watchedLock forwards all calls and records what the elector does not report: the version of its winning write, the
// number of transitions, and whether the release was written.
type watchedLock struct {
	resourcelock.Interface

	mu          sync.Mutex
	record      resourcelock.LeaderElectionRecord
	token       string
	won, gaveUp bool
}

func (l *watchedLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.Interface.Get(ctx)
	if err == nil {
		l.mu.Lock()
		l.record = *record
		l.mu.Unlock()
	}
	return record, raw, err
}

func (l *watchedLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(ctx, record, l.Interface.Create)
}

func (l *watchedLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(ctx, record, l.Interface.Update)
}

type writeFunc func(context.Context, resourcelock.LeaderElectionRecord) error

func (l *watchedLock) write(ctx context.Context, record resourcelock.LeaderElectionRecord, write writeFunc) error {
	var versions versions
	if !l.led() {
		ctx = context.WithValue(ctx, versionsKey{}, &versions)
	}
	if err := write(ctx, record); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.record = record
	switch {
	case record.HolderIdentity == "":
		l.gaveUp = true
	case !l.won:
		l.won = true
		l.token = versions.first()
	}
	return nil
}

func (l *watchedLock) led() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.won
}

func (l *watchedLock) released() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.gaveUp
}

func (l *watchedLock) holder() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.record.HolderIdentity
}

func (l *watchedLock) term() (token string, transitions int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.token, l.record.LeaderTransitions
}
