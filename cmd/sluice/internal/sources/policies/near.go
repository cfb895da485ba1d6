package policies

import (
	"slices"
	"strings"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/sources/nearest"
)

// short returns a value that others have written in not too many words.
func short(value string) string {
	const most = 64
	if len(value) > most {
		return strings.ToValidUTF8(value[:most], "") + "..."
	}
	return value
}

// meant returns ": did you mean ...?" if a word is near.
func meant(word string, words []string) string {
	if near := nearest.Of(word, slices.Values(words)); near != "" {
		return ": did you mean " + near + "?"
	}
	return ""
}
