// Package testserver starts a Kubernetes API server for one test: `tenure server --ephemeral`.
//
// The server keeps its data in memory, listens on a free port of loopback, and ends with the process that started it, even
// if that process is killed.
package testserver

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// startTimeout is the time until a server that prints nothing counts as failed.
	startTimeout = 60 * time.Second
	// stopTimeout is the time until a server that ignores SIGTERM is killed.
	stopTimeout = 10 * time.Second
)

// Start starts an empty server with additional flags of `tenure server`, and returns the configuration of its
// administrator. The server ends with the test. The test fails if there is no command `tenure` on the PATH. The variable
// TENURE_BINARY selects another file.
func Start(t testing.TB, flags ...string) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", StartForKubeconfig(t, flags...))
	if err != nil {
		t.Fatalf("cannot read the kubeconfig of tenure server: %v", err)
	}
	// The limits of client-go protect shared clusters. A test has its own server.
	config.QPS, config.Burst = -1, -1
	return config
}

// StartForKubeconfig is Start for programs that read a file: it returns the path of the administrator's kubeconfig.
func StartForKubeconfig(t testing.TB, flags ...string) string {
	t.Helper()
	binary := os.Getenv("TENURE_BINARY")
	if binary == "" {
		binary = "tenure"
	}
	server := exec.Command(binary, append([]string{"server", "--ephemeral"}, flags...)...)
	server.Stderr = os.Stderr
	out, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatalf("cannot start tenure server: %v", err)
	}
	t.Cleanup(func() { stop(server) })
	kubeconfig, err := firstLine(out)
	if err != nil {
		t.Fatalf("cannot start %s: %v; its messages are on standard error", server, err)
	}
	return kubeconfig
}

// firstLine returns the line that the server prints when it is ready.
func firstLine(out io.Reader) (string, error) {
	type result struct {
		line string
		err  error
	}
	// The reader ends with the server, which the cleanup ends.
	read := make(chan result, 1)
	go func() {
		line, err := bufio.NewReader(out).ReadString('\n')
		read <- result{strings.TrimSuffix(line, "\n"), err}
	}()
	select {
	case first := <-read:
		if first.err == io.EOF {
			return "", fmt.Errorf("it ended")
		}
		return first.line, first.err
	case <-time.After(startTimeout):
		return "", fmt.Errorf("not ready after %v", startTimeout)
	}
}

// stop ends the server, and waits until it has removed its files.
func stop(server *exec.Cmd) {
	kill := time.AfterFunc(stopTimeout, func() { server.Process.Kill() })
	defer kill.Stop()
	server.Process.Signal(syscall.SIGTERM)
	server.Wait()
}
