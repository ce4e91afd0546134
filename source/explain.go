package source

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// errNoObject is what a document is that has neither apiVersion nor kind.
var errNoObject = errors.New("is not a Kubernetes object: it has no apiVersion and kind")

// explain makes one clear line of the codec's error about a document, which begins
// on the given line of its file. It names the object where that much of it can be
// read. The codec's own texts run over several lines, speak of Go's types, and may
// quote the whole document.
func explain(document []byte, line int, err error) error {
	value, notYAML := asJSON(document)
	if notYAML != nil {
		return errors.New(reason(notYAML, line))
	}
	var head struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Metadata   struct {
			Namespace string `json:"namespace"`
			Name      string `json:"name"`
		} `json:"metadata"`
	}
	wrongHead := json.Unmarshal(value, &head) // goes on after a value of the wrong type
	if !bytes.HasPrefix(value, []byte("{")) || runtime.IsMissingKind(err) && head.APIVersion == "" {
		return errNoObject
	}
	text := reason(err, line)
	var wrong *json.UnmarshalTypeError
	switch {
	case runtime.IsMissingKind(err):
		text = "it has no kind"
	case runtime.IsMissingVersion(err):
		text = "it has no apiVersion"
	case errors.As(err, &wrong), errors.As(wrongHead, &wrong):
		text = wrongType(value, wrong)
	}
	return errors.New(strings.TrimPrefix(called(head.Kind, head.Metadata.Namespace, head.Metadata.Name)+": "+text, ": "))
}

// called names an object as far as it has a name.
func called(kind, namespace, name string) string {
	kind = strings.Map(printable, kind)
	if name == "" {
		return kind
	}
	return strings.TrimSpace(reference(kind, namespace, name))
}

// asJSON returns the JSON that the codec makes of a document, without space around
// it; of nothing it may be nothing.
func asJSON(document []byte) ([]byte, error) {
	if json.Valid(document) {
		return bytes.TrimSpace(document), nil
	}
	var value json.RawMessage
	err := yaml.Unmarshal(document, &value)
	return value, err
}

var yamlLine = regexp.MustCompile(`\bline (\d+): `)

// reason returns an error as one line that is safe to print. The line numbers in an error of the YAML
// reader, which is known by its text only, count from the document's first line,
// and are made to count from the file's.
func reason(err error, line int) string {
	text := strings.Map(printable, strings.Join(strings.Fields(err.Error()), " "))
	for _, prefix := range []string{"strict decoding error: ", "error converting YAML to JSON: "} {
		text = strings.TrimPrefix(text, prefix)
	}
	text, isYAML := strings.CutPrefix(text, "yaml: ")
	if !isYAML {
		return text
	}
	return yamlLine.ReplaceAllStringFunc(strings.TrimPrefix(text, "unmarshal errors: "), func(match string) string {
		n, err := strconv.Atoi(yamlLine.FindStringSubmatch(match)[1])
		if err != nil {
			return match
		}
		return fmt.Sprintf("line %d: ", line+n-1)
	})
}

// printable replaces what could take over a terminal.
func printable(r rune) rune {
	if strconv.IsPrint(r) {
		return r
	}
	return utf8.RuneError
}

var indexes = regexp.MustCompile(`\[\d+\]`)

// wrongType says which field of a JSON value holds what it cannot hold.
func wrongType(value []byte, e *json.UnmarshalTypeError) string {
	stream := json.NewDecoder(bytes.NewReader(value))
	stream.UseNumber()
	path, found, ok := locate(stream, e.Offset, "")
	// A field that reads itself counts the offset from its own beginning.
	if !ok || !strings.HasPrefix(indexes.ReplaceAllString(path, ""), e.Field) {
		return fmt.Sprintf("%s: want %s, found %s", e.Field, wanted(e.Type, nil), e.Value)
	}
	text := fmt.Sprintf("%s: want %s, found %s", path, wanted(e.Type, found), described(found))
	_, delimiter := found.(json.Delim)
	if e.Type.Kind() == reflect.String && !delimiter {
		text += ": quote it"
	}
	return text
}

// locate returns the path and the first token of the value at an offset: the end
// of that token.
func locate(stream *json.Decoder, offset int64, path string) (at string, found json.Token, ok bool) {
	token, err := stream.Token()
	if err != nil || stream.InputOffset() >= offset {
		return path, token, err == nil
	}
	if token != json.Delim('[') && token != json.Delim('{') {
		return "", nil, false
	}
	for i := 0; stream.More(); i++ {
		next := fmt.Sprintf("%s[%d]", path, i)
		if token == json.Delim('{') {
			key, _ := stream.Token() // More said that there is one
			next = join(path, fmt.Sprint(key))
		}
		if at, found, ok = locate(stream, offset, next); ok {
			return at, found, true
		}
	}
	_, err = stream.Token() // the closing bracket
	return "", nil, err != nil
}

// join appends a key to the path of a field.
func join(path, key string) string {
	if strings.ContainsFunc(key, func(r rune) bool { return !strconv.IsPrint(r) || strings.ContainsRune(`./[]" `, r) }) {
		return fmt.Sprintf("%s[%q]", path, key)
	}
	return strings.TrimPrefix(path+"."+key, ".")
}

// wanted says in words what a field of that type holds.
func wanted(t reflect.Type, found json.Token) string {
	switch t.Kind() {
	case reflect.String:
		return "text"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int32, reflect.Int64:
		if _, number := found.(json.Number); number {
			return "a whole number in its range"
		}
		return "a number"
	case reflect.Slice:
		return "a list"
	}
	return "a set of fields"
}

// longestQuote bounds how much of a value is repeated in an error.
const longestQuote = 40

// described says in words what a value is.
func described(value json.Token) string {
	switch value := value.(type) {
	case json.Delim:
		if value == '[' {
			return "a list"
		}
		return "a set of fields"
	case bool:
		if value {
			return "true (on and yes mean it, too)"
		}
		return "false (off and no mean it, too)"
	case string:
		return fmt.Sprintf("%.*q", longestQuote, value)
	}
	return fmt.Sprint(value)
}
