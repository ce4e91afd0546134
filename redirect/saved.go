package redirect

import (
	"slices"
	"strings"
)

// saved is what iptables-save prints: by table and chain, the lines in order. A
// chain without rules has a key too.
type saved map[string]map[string][]string

// parseSaved reads the output of iptables-save.
func parseSaved(text string) saved {
	s := saved{}
	var table map[string][]string
	for l := range strings.Lines(text) {
		l = strings.TrimRight(l, "\r\n")
		if name, ok := strings.CutPrefix(l, "*"); ok {
			table = map[string][]string{}
			s[name] = table
		} else if table == nil {
			continue
		} else if name, ok := strings.CutPrefix(l, ":"); ok {
			name, _, _ = strings.Cut(name, " ")
			table[name] = nil
		} else if rest, ok := strings.CutPrefix(l, "-A "); ok {
			name, _, _ := strings.Cut(rest, " ")
			table[name] = append(table[name], l)
		}
	}
	return s
}

// words splits a rule into its arguments, undoing the quotes and backslashes
// with which iptables-save protects a comment.
func words(line string) []string {
	var words []string
	var word strings.Builder
	inWord, inQuotes := false, false
	for i := 0; i < len(line); i++ {
		c := line[i]
		switch {
		case c == '\\' && i+1 < len(line):
			i++
			word.WriteByte(line[i])
			inWord = true
		case c == '"':
			inQuotes = !inQuotes
			inWord = true
		case c == ' ' && !inQuotes:
			if inWord {
				words = append(words, word.String())
				word.Reset()
				inWord = false
			}
		default:
			word.WriteByte(c)
			inWord = true
		}
	}
	if inWord {
		words = append(words, word.String())
	}
	return words
}

// argument returns the word after the first of the given options, or "".
func argument(words []string, options ...string) string {
	for i := 0; i+1 < len(words); i++ {
		if slices.Contains(options, words[i]) {
			return words[i+1]
		}
	}
	return ""
}

// target returns the chain or target a rule leads to.
func target(line string) string {
	return argument(words(line), "-j", "-g")
}

// equal reports whether two lists of rules say the same in the same order.
func equal(a, b []string) bool {
	return slices.EqualFunc(a, b, same)
}

// same reports whether two lines are the same rule: versions of iptables differ
// in quoting, in blanks and in the order of the matches they print.
func same(a, b string) bool {
	return a == b || slices.Equal(normal(a), normal(b))
}

// normal splits a rule into its matches and sorts them. A match starts at an
// option of one letter ("-m", "-d"). No rule of ours has a "!" before one of
// those, so a line that has it differs wherever the "!" is put.
func normal(line string) []string {
	var matches []string
	start := 0
	all := words(line)
	for i, word := range all {
		if len(word) == 2 && word[0] == '-' && i > start {
			matches = append(matches, strings.Join(all[start:i], "\x00"))
			start = i
		}
	}
	matches = append(matches, strings.Join(all[start:], "\x00"))
	slices.Sort(matches)
	return matches
}
