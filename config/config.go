package config

import (
	"errors"
	"fmt"
	"os"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	serializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/kube-proxy/config/v1alpha1"
)

// Configuration is kube-proxy's.
type Configuration = v1alpha1.KubeProxyConfiguration

// LocalMode is a way to tell packets of pods from others.
type LocalMode = v1alpha1.LocalMode

const (
	kind       = "KubeProxyConfiguration"
	apiVersion = v1alpha1.GroupName + "/v1alpha1"
)

// File is what a configuration file says.
type File struct {
	// Text is the file as it was read.
	Text []byte
	// Given is the configuration without what the file leaves to defaults.
	Given *Configuration
	// Config is the configuration with all defaults.
	Config *Configuration
	// Ignored names the fields that nobody knows, and those given twice, of which the
	// last counts. It is one line, empty if there are none.
	Ignored string
}

// Read reads a configuration file. The error is one line that names the file.
func Read(path string) (*File, error) {
	text, err := read(path, mayBePipe)
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	file, err := Decode(text)
	if err != nil {
		return nil, fmt.Errorf("read the configuration %s: %w", path, err)
	}
	return file, nil
}

// Decode reads a configuration in YAML or JSON. As in kube-proxy, a field that is
// unknown or there twice is no error; a value of the wrong type is.
func Decode(text []byte) (*File, error) {
	given, err := decode(text, true)
	ignored := ""
	if runtime.IsStrictDecodingError(err) {
		ignored = strings.TrimPrefix(oneLine(err), "strict decoding error: ")
		given, err = decode(text, false)
	}
	if err != nil {
		return nil, explain(err)
	}
	config := given.DeepCopy()
	SetDefaults(config)
	return &File{Text: text, Given: given, Config: config, Ignored: ignored}, nil
}

func decode(text []byte, strict bool) (*Configuration, error) {
	decoded, _, err := newSerializer(strict).Decode(text, nil, nil)
	if err != nil {
		return nil, err
	}
	config, is := decoded.(*Configuration)
	if !is {
		return nil, fmt.Errorf("it holds a %T", decoded)
	}
	return config, nil
}

// newSerializer knows the one kind. It reads JSON too, which is YAML.
func newSerializer(strict bool) *serializer.Serializer {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(v1alpha1.SchemeGroupVersion, &Configuration{})
	return serializer.NewSerializerWithOptions(serializer.DefaultMetaFactory, scheme, scheme,
		serializer.SerializerOptions{Yaml: true, Strict: strict})
}

// explain makes one line of what is wrong, and says how to mend it.
func explain(err error) error {
	if runtime.IsMissingKind(err) || runtime.IsMissingVersion(err) || runtime.IsNotRegisteredError(err) {
		return fmt.Errorf("%s; want kind: %s and apiVersion: %s", oneLine(err), kind, apiVersion)
	}
	return errors.New(oneLine(err))
}

func oneLine(err error) string {
	return strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' }), "; ")
}

// Write writes a configuration, which has to have its defaults, to a file, in YAML, in
// place of what is there.
func Write(path string, c *Configuration) error {
	var text strings.Builder
	if err := newSerializer(true).Encode(c, &text); err != nil {
		return fmt.Errorf("write the configuration: %w", err)
	}
	if err := os.WriteFile(path, []byte(text.String()), 0o644); err != nil {
		return fmt.Errorf("write the configuration: %w", err)
	}
	return nil
}

var typeMeta = metav1.TypeMeta{Kind: kind, APIVersion: apiVersion}
