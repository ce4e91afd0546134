// Package house holds the repository to its own rules: which package may import
// which, one comment a package, no overlong file or function.
package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/kube-splice/kube-splice"

// mayImport says which packages of ours each package may import outside of its
// tests. Siblings do not know each other.
var mayImport = map[string][]string{
	"service":         {},
	"balancer":        {"service"},
	"source":          {"service"},
	"redirect":        {"service"},
	"proxy/relay":     {},
	"proxy/datagram":  {},
	"proxy/header":    {},
	"proxy":           {"service", "balancer", "proxy/relay", "proxy/datagram", "proxy/header"},
	"status":          {"service", "balancer", "proxy"},
	"lab":             {},
	"config":          {},
	"cmd/kube-splice": {"service", "source", "balancer", "redirect", "proxy", "proxy/relay", "status", "lab", "config"},
}

// onlyImporter says which package alone may import a module of others.
var onlyImporter = map[string][]string{
	"k8s.io/":                        {"source", "config"},
	"k8s.io/client-go/":              {"source"},
	"k8s.io/kube-proxy/":             {"config"},
	"k8s.io/component-base/":         {"config"},
	"github.com/fsnotify/":           {"source"},
	"github.com/coreos/go-iptables/": {"redirect"},
	"github.com/spf13/":              {"cmd/kube-splice"},
	"github.com/gaissmai/":           {"proxy"},
	"github.com/vishvananda/":        {"redirect", "lab"},
	"github.com/hashicorp/":          {"status"},
	"github.com/prometheus/":         {"status"},
	"github.com/ti-mo/":              {"proxy/datagram"},
	"github.com/pires/":              {"proxy/header"},
	"kernel.org/":                    {"cmd/kube-splice"},
}

const (
	longestFile     = 400
	longestFunction = 45
)

// file is a parsed Go file of the repository.
type file struct {
	path string // from the root
	pkg  string // its folder
	test bool
	ast  *ast.File
	set  *token.FileSet
}

func goFiles(t *testing.T) []file {
	t.Helper()
	var files []file
	err := filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && name != "." {
			_, err := os.Stat(filepath.Join(name, "go.mod"))
			if err == nil || strings.HasPrefix(entry.Name(), ".") {
				return fs.SkipDir // another module, or not for us
			}
		}
		if !strings.HasSuffix(name, ".go") || path.Dir(filepath.ToSlash(name)) == "." {
			return nil
		}
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, name, nil, parser.ParseComments)
		files = append(files, file{filepath.ToSlash(name), path.Dir(filepath.ToSlash(name)), strings.HasSuffix(name, "_test.go"), parsed, set})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestImportsGoOneWay(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range goFiles(t) {
		allowed, known := mayImport[f.pkg]
		if !known {
			t.Errorf("%s: package %s is not in the house plan", f.path, f.pkg)
			continue
		}
		seen[f.pkg] = true
		for _, spec := range f.ast.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil || f.test {
				continue
			}
			if ours, is := strings.CutPrefix(imported, module+"/"); is && !slices.Contains(allowed, ours) {
				t.Errorf("%s imports %s; package %s may import %v", f.path, ours, f.pkg, allowed)
			}
			for prefix, importers := range onlyImporter {
				if strings.HasPrefix(imported, prefix) && !slices.Contains(importers, f.pkg) {
					t.Errorf("%s imports %s, which is for %v", f.path, imported, importers)
				}
			}
		}
	}
	for _, pkg := range slices.Sorted(maps.Keys(mayImport)) {
		if !seen[pkg] {
			t.Errorf("package %s of the house plan does not exist", pkg)
		}
	}
}

func TestEveryPackageSaysOnceWhatItIs(t *testing.T) {
	comments := map[string][]string{}
	for _, f := range goFiles(t) {
		if f.test {
			continue
		}
		if _, known := comments[f.pkg]; !known {
			comments[f.pkg] = nil
		}
		if f.ast.Doc != nil {
			comments[f.pkg] = append(comments[f.pkg], f.path)
		}
	}
	for pkg, files := range comments {
		if len(files) != 1 {
			t.Errorf("package %s has its comment in %v, want one file", pkg, files)
		}
	}
}

func TestFilesAndFunctionsStayShort(t *testing.T) {
	for _, f := range goFiles(t) {
		lines := f.set.File(f.ast.Pos()).LineCount()
		if lines > longestFile {
			t.Errorf("%s has %d lines, more than %d", f.path, lines, longestFile)
		}
		for _, decl := range f.ast.Decls {
			function, is := decl.(*ast.FuncDecl)
			if !is || f.test {
				continue
			}
			length := f.set.Position(function.End()).Line - f.set.Position(function.Pos()).Line + 1
			if length > longestFunction {
				t.Errorf("%s: %s has %d lines, more than %d", f.path, function.Name.Name, length, longestFunction)
			}
		}
	}
}

func TestReadmeNamesItsTwoCommands(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"make demo", "make test"} {
		if !strings.Contains(string(text), command) {
			t.Errorf("README.md does not say %q", command)
		}
	}
}

// testNamed finds a test that a table names to prove its row.
var testNamed = regexp.MustCompile("`((?:Test|Fuzz)[A-Z]\\w+)`")

func TestWhatDocumentsClaimIsProvenByTestsThatExist(t *testing.T) {
	there := map[string]bool{}
	for _, f := range goFiles(t) {
		for _, decl := range f.ast.Decls {
			if function, is := decl.(*ast.FuncDecl); is && f.test {
				there[function.Name.Name] = true
			}
		}
	}
	for number, line := range lines(t, "docs/compatibility.md") {
		checkNames(t, "docs/compatibility.md", number, line, there)
		if cells := strings.Split(line, "|"); len(cells) > 4 && strings.TrimSpace(cells[2]) == "same" && strings.TrimSpace(cells[4]) == "" {
			t.Errorf("docs/compatibility.md:%d says same and names no test", number+1)
		}
	}
	for number, line := range lines(t, "SECURITY.md") {
		named := checkNames(t, "SECURITY.md", number, line, there)
		isRow := strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| may")
		if isRow && named == 0 && !strings.Contains(line, "not shown by a test") {
			t.Errorf("SECURITY.md:%d names no test, and does not say that there is none", number+1)
		}
	}
}

func lines(t *testing.T, path string) []string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(string(text), "\n")
}

// checkNames returns how many tests a line names, all of which have to be there.
func checkNames(t *testing.T, path string, number int, line string, there map[string]bool) int {
	t.Helper()
	all := testNamed.FindAllStringSubmatch(line, -1)
	for _, named := range all {
		if !there[named[1]] {
			t.Errorf("%s:%d names %s, which is no test", path, number+1, named[1])
		}
	}
	return len(all)
}
