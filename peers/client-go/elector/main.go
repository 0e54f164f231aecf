// Command elector is an ordinary user of client-go's leader election. It prints the same event lines as
// `tenure elect --events json`, so that one checker reads both.
//
// The same source is built against today's client-go (go.mod) and against the last release that has every lock
// kind (go-0.23.mod).
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"tenure/peers/client-go/jsonline"
)

func main() {
	var o options
	o.register(flag.CommandLine)
	flag.Parse()
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "elector:", err)
		os.Exit(1)
	}
}

type options struct {
	kubeconfig, namespace, name, id, lock, storeAddress string
	elections                                           int
	leaseDuration, renewDeadline, retryPeriod, workTick time.Duration
	requestTimeout                                      time.Duration
	release                                             bool
}

func (o *options) register(flags *flag.FlagSet) {
	flags.StringVar(&o.kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"), "kubeconfig file")
	flags.StringVar(&o.namespace, "namespace", "default", "namespace of the lock")
	flags.StringVar(&o.name, "name", "election", "name of the lock, or its prefix with --elections")
	flags.IntVar(&o.elections, "elections", 0, "contend for NAME-0 to NAME-(N-1) instead of NAME")
	flags.StringVar(&o.id, "id", "", "identity (default: host name and process id)")
	flags.StringVar(&o.lock, "lock", "leases", "lock kind, as this client-go spells it")
	flags.DurationVar(&o.leaseDuration, "lease-duration", 15*time.Second, "time that others wait after a renewal")
	flags.DurationVar(&o.renewDeadline, "renew-deadline", 10*time.Second, "time for which a leader tries to renew")
	flags.DurationVar(&o.retryPeriod, "retry-period", 2*time.Second, "pause between attempts")
	flags.DurationVar(&o.requestTimeout, "request-timeout", 0, "limit of one request (default: half the renew deadline)")
	flags.BoolVar(&o.release, "release", true, "release the lock at the end (ReleaseOnCancel)")
	flags.DurationVar(&o.workTick, "work", 0, "while leading, print a `working` line at this interval (0: never)")
	flags.StringVar(&o.storeAddress, "store", "", "with --work, also send each step of work to this `address`, with the token of the term")
}

func run(o options) error {
	if o.id == "" {
		host, err := os.Hostname()
		if err != nil {
			return err
		}
		o.id = fmt.Sprintf("%s_%d", host, os.Getpid())
	}
	counter := &counter{started: time.Now()}
	client, err := connect(o, counter)
	if err != nil {
		return err
	}

	store, err := openStore(o.storeAddress)
	if err != nil {
		return err
	}

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	out := jsonline.New(os.Stdout)
	var running sync.WaitGroup
	for _, name := range o.names() {
		candidate := &candidate{options: o, client: client, store: store, out: out, election: name}
		if err := candidate.validate(); err != nil {
			return err
		}
		running.Add(1)
		go func() {
			defer running.Done()
			candidate.contend(ctx)
		}()
	}
	running.Wait()
	out.Print(counter.line(o.id))
	return nil
}

func (o options) names() []string {
	if o.elections == 0 {
		return []string{o.name}
	}
	names := make([]string, o.elections)
	for i := range names {
		names[i] = fmt.Sprintf("%s-%d", o.name, i)
	}
	return names
}

// connect creates the client like resourcelock.NewFromKubeconfig: one request may take half the renew deadline. The
// client's rate limit is disabled, because with many elections the benchmark would measure the limit.
func connect(o options, counter *counter) (kubernetes.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return nil, err
	}
	config.Timeout = o.requestTimeout
	if config.Timeout == 0 {
		config.Timeout = o.renewDeadline / 2
	}
	config.QPS = -1
	config.Wrap(counter.wrap)
	return kubernetes.NewForConfig(rest.AddUserAgent(config, "leader-election"))
}
