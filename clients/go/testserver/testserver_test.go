package testserver_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"tenure.dev/clients/go/testserver"
)

func TestLeaseIsCreated(t *testing.T) {
	client, err := kubernetes.NewForConfig(testserver.Start(t))
	if err != nil {
		t.Fatal(err)
	}
	leases := client.CoordinationV1().Leases("default")
	holder := "a"
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder},
	}
	if _, err := leases.Create(t.Context(), lease, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	read, err := leases.Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if read.Spec.HolderIdentity == nil || *read.Spec.HolderIdentity != holder {
		t.Fatalf("holder: %v", read.Spec.HolderIdentity)
	}
}

func TestServerEndsWithItsTest(t *testing.T) {
	var config *rest.Config
	t.Run("inner", func(t *testing.T) { config = testserver.Start(t, "--disable=all") })
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Discovery().ServerVersion(); err == nil {
		t.Fatal("the server outlives its test")
	}
}

func TestServersAreIndependent(t *testing.T) {
	first, second := testserver.Start(t), testserver.Start(t)
	if first.Host == second.Host {
		t.Fatalf("both servers are %s", first.Host)
	}
}

// TestMissingBinaryIsReported runs this program again, because the inner test fails.
func TestMissingBinaryIsReported(t *testing.T) {
	if os.Getenv("TENURE_BINARY") == "/nowhere/tenure" {
		testserver.Start(t)
		return
	}
	again := exec.Command(os.Args[0], "-test.run=^TestMissingBinaryIsReported$")
	again.Env = append(os.Environ(), "TENURE_BINARY=/nowhere/tenure")
	said, err := again.CombinedOutput()
	if err == nil || !strings.Contains(string(said), "cannot start tenure server") {
		t.Fatalf("%v: %s", err, said)
	}
}

// TestKilledProcess ends without cleanup. The caller checks that the server ends.
func TestKilledProcess(t *testing.T) {
	if os.Getenv("TESTSERVER_KILL") == "" {
		t.Skip("TESTSERVER_KILL is not set")
	}
	fmt.Println("kubeconfig:", testserver.StartForKubeconfig(t))
	syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}
