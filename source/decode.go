package source

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	serializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// decoder reads documents strictly: an unknown or repeated field is an error. It
// knows only the kinds we use and holds no state.
type decoder struct {
	yaml, json runtime.Decoder
}

func newDecoder() *decoder {
	scheme := newScheme()
	strict := func(yaml bool) runtime.Decoder {
		return serializer.NewSerializerWithOptions(serializer.DefaultMetaFactory, scheme, scheme,
			serializer.SerializerOptions{Yaml: yaml, Strict: true})
	}
	return &decoder{yaml: strict(true), json: strict(false)}
}

// contents is what a file holds.
type contents struct {
	documents int                       // that hold something
	objects   []object                  // in order of appearance, defaults filled in
	skipped   []schema.GroupVersionKind // kinds we have no use for
}

// object is an API object of a kind we use.
type object interface {
	runtime.Object
	metav1.Object
}

// errEmpty is what a document is that does not count.
var errEmpty = errors.New("it is empty")

// decode reads YAML or JSON with any number of documents. The error names the
// document, counting from 1 and counting only documents that hold something.
func (d *decoder) decode(data []byte) (contents, error) {
	var c contents
	// A last line without an end is lost if it just fills the reader's buffer.
	ended := io.MultiReader(bytes.NewReader(data), strings.NewReader("\n"))
	reader := yaml.NewYAMLReader(bufio.NewReader(ended))
	for line := 1; ; {
		text, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return c, nil
		}
		if err != nil {
			return contents{}, fmt.Errorf("document %d: %s", c.documents+1, reason(err, line))
		}
		for _, document := range splitJSON(text) {
			err := d.document(document, line, &c)
			if errors.Is(err, errEmpty) {
				continue
			}
			c.documents++
			if err != nil {
				return contents{}, fmt.Errorf("document %d: %w", c.documents, err)
			}
		}
		line += bytes.Count(text, []byte("\n")) + 1 // the separator
	}
}

// splitJSON separates JSON values written one after the other. What is not JSON
// from end to end comes back whole, for the YAML decoder to read or to refuse.
func splitJSON(text []byte) [][]byte {
	if !yaml.IsJSONBuffer(text) {
		return [][]byte{text}
	}
	var values [][]byte
	for stream := json.NewDecoder(bytes.NewReader(text)); ; {
		var value json.RawMessage
		err := stream.Decode(&value)
		if errors.Is(err, io.EOF) {
			return values
		}
		if err != nil {
			return [][]byte{text}
		}
		values = append(values, value)
	}
}

// document adds what one document, which begins on the given line, holds to c.
func (d *decoder) document(document []byte, line int, c *contents) error {
	with := d.yaml
	if json.Valid(document) {
		with = d.json
	}
	err := d.value(with, document, line, c)
	if errors.Is(err, errNoObject) && isEmpty(document) {
		return errEmpty
	}
	return err
}

// isEmpty reports whether a document holds nothing, or nothing but comments.
func isEmpty(document []byte) bool {
	value, err := asJSON(document)
	return err == nil && (len(value) == 0 || string(value) == "null")
}

// value adds the object or the list of objects in one value to c.
func (d *decoder) value(with runtime.Decoder, value []byte, line int, c *contents) error {
	decoded, kind, err := with.Decode(value, nil, nil)
	if runtime.IsNotRegisteredError(err) {
		c.skipped = append(c.skipped, *kind)
		return nil
	}
	if err != nil {
		return explain(value, line, err)
	}
	if list, mixed := decoded.(*corev1.List); mixed {
		for i, item := range list.Items {
			if err := d.value(d.json, item.Raw, line, c); err != nil {
				return fmt.Errorf("item %d: %w", i+1, err)
			}
		}
		return nil
	}
	if meta.IsListType(decoded) {
		return meta.EachListItem(decoded, c.add)
	}
	return c.add(decoded)
}

// add keeps a decoded object of a kind we use.
func (c *contents) add(decoded runtime.Object) error {
	o, ok := decoded.(object)
	if !ok {
		return fmt.Errorf("it is a %T, which has no metadata", decoded)
	}
	setDefaults(o)
	c.objects = append(c.objects, o)
	return nil
}
