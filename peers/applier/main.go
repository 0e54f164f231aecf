// Command applier is an ordinary user of client-go's server-side apply: typed apply configurations, extraction,
// conflicts, force, the status of a claim, and the dynamic client for a custom resource. It prints nothing and exits
// with 0 if everything matches the documentation of client-go.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apply "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

const namespace = "default"

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: applier KUBECONFIG")
		os.Exit(2)
	}
	if err := run(ctx, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "applier:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	dynamicClient, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	if err := maps(ctx, client); err != nil {
		return fmt.Errorf("config maps: %w", err)
	}
	if err := claims(ctx, client); err != nil {
		return fmt.Errorf("claims: %w", err)
	}
	if err := things(ctx, dynamicClient); err != nil {
		return fmt.Errorf("things: %w", err)
	}
	return nil
}

// maps lets two managers share a map and conflict about a key. A key that its manager no longer applies is removed.
func maps(ctx context.Context, client kubernetes.Interface) error {
	maps := client.CoreV1().ConfigMaps(namespace)
	as := func(manager string) metav1.ApplyOptions { return metav1.ApplyOptions{FieldManager: manager} }
	of := func(data map[string]string) *apply.ConfigMapApplyConfiguration {
		return apply.ConfigMap("applied", namespace).WithData(data)
	}
	if _, err := maps.Apply(ctx, of(map[string]string{"a": "1", "b": "1"}), as("one")); err != nil {
		return err
	}
	if _, err := maps.Apply(ctx, of(map[string]string{"c": "2"}), as("two")); err != nil {
		return err
	}
	_, err := maps.Apply(ctx, of(map[string]string{"a": "2", "c": "2"}), as("two"))
	if !apierrors.IsConflict(err) || !strings.Contains(err.Error(), ".data.a") {
		return fmt.Errorf("no conflict about .data.a: %v", err)
	}
	force := as("two")
	force.Force = true
	if _, err := maps.Apply(ctx, of(map[string]string{"a": "2", "c": "2"}), force); err != nil {
		return err
	}
	// Manager one no longer applies b, so b is removed. Manager one no longer owns a.
	now, err := maps.Apply(ctx, of(map[string]string{}), as("one"))
	if err != nil {
		return err
	}
	if len(now.Data) != 2 || now.Data["a"] != "2" || now.Data["c"] != "2" {
		return fmt.Errorf("data is %v", now.Data)
	}
	mine, err := apply.ExtractConfigMap(now, "two")
	if err != nil {
		return err
	}
	if len(mine.Data) != 2 {
		return fmt.Errorf("two owns %v", mine.Data)
	}
	theirs, err := apply.ExtractConfigMap(now, "one")
	if err != nil {
		return err
	}
	if len(theirs.Data) != 0 {
		return fmt.Errorf("one still owns %v", theirs.Data)
	}
	return nil
}

// claims applies conditions of a status, a list by type in which each manager owns its own elements.
func claims(ctx context.Context, client kubernetes.Interface) error {
	claims := client.CoreV1().PersistentVolumeClaims(namespace)
	applied := apply.PersistentVolumeClaim("applied", namespace).WithSpec(apply.PersistentVolumeClaimSpec().
		WithAccessModes(corev1.ReadWriteOnce).WithStorageClassName("none").
		WithResources(apply.VolumeResourceRequirements().WithRequests(corev1.ResourceList{
			corev1.ResourceStorage: resource.MustParse("1Gi"),
		})))
	if _, err := claims.Apply(ctx, applied, metav1.ApplyOptions{FieldManager: "one"}); err != nil {
		return err
	}
	for _, kind := range []string{"One", "Two"} {
		status := apply.PersistentVolumeClaim("applied", namespace).WithStatus(apply.PersistentVolumeClaimStatus().
			WithConditions(apply.PersistentVolumeClaimCondition().
				WithType(corev1.PersistentVolumeClaimConditionType(kind)).WithStatus(corev1.ConditionTrue)))
		options := metav1.ApplyOptions{FieldManager: strings.ToLower(kind)}
		if _, err := claims.ApplyStatus(ctx, status, options); err != nil {
			return err
		}
	}
	now, err := claims.Get(ctx, "applied", metav1.GetOptions{})
	if err != nil {
		return err
	}
	if len(now.Status.Conditions) != 2 {
		return fmt.Errorf("conditions are %v", now.Status.Conditions)
	}
	return nil
}

// things applies a custom resource through the dynamic client.
func things(ctx context.Context, client dynamic.Interface) error {
	things := client.Resource(schema.GroupVersionResource{Group: "t.example", Version: "v1", Resource: "things"})
	thing := func(spec map[string]any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "t.example/v1", "kind": "Thing",
			"metadata": map[string]any{"name": "applied"}, "spec": spec,
		}}
	}
	in := things.Namespace(namespace)
	if _, err := in.Apply(ctx, "applied", thing(map[string]any{"a": "1"}), metav1.ApplyOptions{FieldManager: "one"}); err != nil {
		return err
	}
	_, err := in.Apply(ctx, "applied", thing(map[string]any{"a": "2"}), metav1.ApplyOptions{FieldManager: "two"})
	if !apierrors.IsConflict(err) {
		return fmt.Errorf("no conflict: %v", err)
	}
	now, err := in.Apply(ctx, "applied", thing(map[string]any{"b": "2"}), metav1.ApplyOptions{FieldManager: "two"})
	if err != nil {
		return err
	}
	spec, _, err := unstructured.NestedStringMap(now.Object, "spec")
	if err != nil {
		return err
	}
	if len(spec) != 2 {
		return fmt.Errorf("spec is %v", spec)
	}
	return nil
}
