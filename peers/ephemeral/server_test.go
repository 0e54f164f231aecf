package shop

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// startServer starts a server that ends with the test, and returns a client for it.
func startServer(t *testing.T) *kubernetes.Clientset {
	t.Helper()
	server := exec.Command("tenure", "server", "--ephemeral")
	server.Stderr = os.Stderr
	out, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.Process.Signal(syscall.SIGTERM)
		server.Wait()
	})
	kubeconfig, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", strings.TrimSpace(kubeconfig))
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestNamespaceIsCreated(t *testing.T) {
	namespaces := startServer(t).CoreV1().Namespaces()
	shop := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}
	if _, err := namespaces.Create(t.Context(), shop, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}
