// Command translation translates storage objects between in-tree plugins and CSI drivers with the library that
// Kubernetes uses. It reads one request per line and answers each with one line. An operation that the library
// rejects is an answer with an error, not the end of the program.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	translation "k8s.io/csi-translation-lib"
	"k8s.io/klog/v2"
)

type request struct {
	// Operation is "class", "to-csi" or "to-in-tree".
	Operation string `json:"operation"`
	// Plugin is the in-tree plugin of a class.
	Plugin string          `json:"plugin"`
	Object json.RawMessage `json:"object"`
}

type answer struct {
	Object any    `json:"object,omitempty"`
	Error  string `json:"error,omitempty"`
}

func main() {
	// The library logs parameters that it drops; the answers show them.
	logger := klog.NewKlogr().V(9)
	input := bufio.NewReaderSize(os.Stdin, 1<<16)
	output := bufio.NewWriter(os.Stdout)
	decoder := json.NewDecoder(input)
	encoder := json.NewEncoder(output)
	for decoder.More() {
		var asked request
		if err := decoder.Decode(&asked); err != nil {
			fail(err)
		}
		object, err := translate(logger, asked)
		told := answer{Object: object}
		if err != nil {
			told = answer{Error: err.Error()}
		}
		if err := encoder.Encode(told); err != nil {
			fail(err)
		}
	}
	if err := output.Flush(); err != nil {
		fail(err)
	}
}

func translate(logger klog.Logger, asked request) (any, error) {
	translator := translation.New()
	switch asked.Operation {
	case "class":
		var class storagev1.StorageClass
		if err := json.Unmarshal(asked.Object, &class); err != nil {
			fail(err)
		}
		return translator.TranslateInTreeStorageClassToCSI(logger, asked.Plugin, &class)
	case "to-csi", "to-in-tree":
		var volume corev1.PersistentVolume
		if err := json.Unmarshal(asked.Object, &volume); err != nil {
			fail(err)
		}
		if asked.Operation == "to-csi" {
			return translator.TranslateInTreePVToCSI(logger, &volume)
		}
		return translator.TranslateCSIPVToInTree(&volume)
	default:
		fail(fmt.Errorf("unknown operation %q", asked.Operation))
		return nil, nil
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "translation:", err)
	os.Exit(1)
}
