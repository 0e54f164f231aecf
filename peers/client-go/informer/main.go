// Command informer is an ordinary user of client-go's shared informers. It prints every notification and, at the end,
// the contents of its caches, so that a harness can compare them with the server.
//
// With KUBE_WATCHLIST_INCONSISTENCY_DETECTOR=true client-go itself compares each streamed list with a plain one and
// panics if they differ.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sort"
	"strings"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"tenure/peers/client-go/jsonline"
)

type line struct {
	jsonline.Stamp
	Event           string   `json:"event"`
	Resource        string   `json:"resource,omitempty"`
	Namespace       string   `json:"namespace,omitempty"`
	Name            string   `json:"name,omitempty"`
	ResourceVersion string   `json:"resourceVersion,omitempty"`
	Objects         []string `json:"objects,omitempty"`
}

var resources = map[string]schema.GroupVersionResource{
	"leases":     {Group: "coordination.k8s.io", Version: "v1", Resource: "leases"},
	"configmaps": {Version: "v1", Resource: "configmaps"},
	"endpoints":  {Version: "v1", Resource: "endpoints"},
	"secrets":    {Version: "v1", Resource: "secrets"},
}

func main() {
	kubeconfig := flag.String("kubeconfig", os.Getenv("KUBECONFIG"), "kubeconfig file")
	namespace := flag.String("namespace", metav1.NamespaceAll, "namespace (default: all)")
	names := flag.String("resources", "leases,configmaps", "resources to watch, separated by commas")
	flag.Parse()
	if err := run(*kubeconfig, *namespace, strings.Split(*names, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "informer:", err)
		os.Exit(1)
	}
}

func run(kubeconfig, namespace string, names []string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()

	out := jsonline.New(os.Stdout)
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace))
	watched := map[string]cache.SharedIndexInformer{}
	for _, name := range names {
		resource, known := resources[name]
		if !known {
			return fmt.Errorf("unknown resource %q", name)
		}
		generic, err := factory.ForResource(resource)
		if err != nil {
			return err
		}
		if _, err := generic.Informer().AddEventHandler(printer(out, name)); err != nil {
			return err
		}
		watched[name] = generic.Informer()
	}
	factory.Start(ctx.Done())
	for name, informer := range watched {
		if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
			return fmt.Errorf("%s never synced", name)
		}
		out.Print(line{Stamp: jsonline.At(time.Now()), Event: "synced", Resource: name})
	}
	<-ctx.Done()
	for name, informer := range watched {
		out.Print(line{Stamp: jsonline.At(time.Now()), Event: "cache", Resource: name, Objects: contents(informer)})
	}
	return nil
}

func printer(out *jsonline.Writer, resource string) cache.ResourceEventHandler {
	report := func(event string, object any) {
		if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
			object = gone.Obj
		}
		meta := object.(metav1.Object)
		out.Print(line{
			Stamp:           jsonline.At(time.Now()),
			Event:           event,
			Resource:        resource,
			Namespace:       meta.GetNamespace(),
			Name:            meta.GetName(),
			ResourceVersion: meta.GetResourceVersion(),
		})
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { report("added", object) },
		UpdateFunc: func(_, object any) { report("updated", object) },
		DeleteFunc: func(object any) { report("deleted", object) },
	}
}

// contents formats a cache as sorted "namespace/name@version".
func contents(informer cache.SharedIndexInformer) []string {
	var objects []string
	for _, object := range informer.GetStore().List() {
		meta := object.(metav1.Object)
		objects = append(objects, fmt.Sprintf("%s/%s@%s", meta.GetNamespace(), meta.GetName(), meta.GetResourceVersion()))
	}
	sort.Strings(objects)
	return objects
}
