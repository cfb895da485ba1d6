package status

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// zTop is what both pages begin with: the component and the page.
const zTop = `
%s %s
Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for ` +
	"debugging purposes only.\n"

const (
	component = "sluice"
	zGroup    = "config.k8s.io" // the API group of /statusz and /flagz

	jsonType, yamlType, textType = "application/json", "application/yaml", "text/plain"
)

// zVersions are the versions of the group, the deprecated one last.
var zVersions = []string{"v1beta1", "v1alpha1"}

// zHead is what both objects begin with.
type zHead struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        struct {
		Name string `json:"name"`
	} `json:"metadata"`
}

// statusz is the object of /statusz.
type statusz struct {
	zHead         `json:",inline"`
	StartTime     metav1.Time `json:"startTime"`
	UptimeSeconds int64       `json:"uptimeSeconds"`
	GoVersion     string      `json:"goVersion"`
	BinaryVersion string      `json:"binaryVersion"`
	Paths         []string    `json:"paths"`
}

// flagz is the object of /flagz.
type flagz struct {
	zHead `json:",inline"`
	Flags map[string]string `json:"flags,omitempty"`
}

// statusz answers /statusz; paths are the others of the address.
func (i Info) statusz(paths []string) http.HandlerFunc {
	slices.Sort(paths)
	up := func() time.Duration { return max(0, time.Since(i.Started)) }
	return zPage("Statusz", func(head zHead) any {
		return statusz{head, metav1.Time{Time: i.Started}, int64(up().Seconds()), runtime.Version(), i.Version, paths}
	}, func() string {
		s := int64(up().Seconds())
		return fmt.Sprintf("\nStarted: %s\nUp: %d hr %02d min %02d sec\n", i.Started.Format(time.UnixDate), s/3600,
			s/60%60, s%60) + fmt.Sprintf("Go version: %s\nBinary version: %s\nPaths: %s\n", runtime.Version(),
			i.Version, strings.Join(paths, " "))
	})
}

// flagz answers /flagz.
func (i Info) flagz() http.HandlerFunc {
	return zPage("Flagz", func(head zHead) any { return flagz{head, i.Flags} }, func() string {
		var b strings.Builder
		for _, name := range slices.Sorted(maps.Keys(i.Flags)) {
			fmt.Fprintf(&b, "%s=%s\n", name, i.Flags[name])
		}
		return b.String()
	})
}

// zPage answers as text, or as an object of a kind if the client asks for a version of it.
func zPage(kind string, object func(zHead) any, text func() string) http.HandlerFunc {
	name := strings.ToLower(kind)
	return func(w http.ResponseWriter, r *http.Request) {
		media, version := negotiate(r.Header.Get("Accept"), kind)
		switch media {
		case "":
			write(w, http.StatusNotAcceptable, textType, fmt.Sprintf("give %s, or %s;as=%s;g=%s;v=%s, in Accept\n",
				textType, jsonType, kind, zGroup, zVersions[0]))
			return
		case textType:
			write(w, http.StatusOK, textType+"; charset=utf-8", fmt.Sprintf(zTop, component, name)+text())
			return
		}
		if version != zVersions[0] {
			w.Header().Set("Warning", fmt.Sprintf(
				`299 - "This version of the %s endpoint is deprecated. Please use a newer version."`, name))
		}
		head := zHead{TypeMeta: metav1.TypeMeta{Kind: kind, APIVersion: zGroup + "/" + version}}
		head.Metadata.Name = component
		body, err := json.Marshal(object(head))
		if err == nil && media == yamlType {
			body, err = yaml.JSONToYAML(body)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		write(w, http.StatusOK, media, string(body))
	}
}

// clause is one media type of a header Accept.
type clause struct {
	kind    string // text/plain
	params  map[string]string
	quality float64
}

// negotiate returns the media type of the answer by a header Accept, and the version of the object where it is one. An
// object is for who names its kind, group and version. Empty: there is nothing for this client.
func negotiate(accept, kind string) (media, version string) {
	if strings.TrimSpace(accept) == "" {
		return textType, ""
	}
	var clauses []clause
	for one := range strings.SplitSeq(accept, ",") {
		media, params, err := mime.ParseMediaType(one)
		if err != nil {
			continue
		}
		quality, err := strconv.ParseFloat(params["q"], 64)
		if err != nil {
			quality = 1
		}
		clauses = append(clauses, clause{media, params, quality})
	}
	slices.SortStableFunc(clauses, func(a, b clause) int { return cmp.Compare(b.quality, a.quality) })
	for _, want := range clauses {
		as, g, v := want.params["as"], want.params["g"], want.params["v"]
		main, _, _ := strings.Cut(want.kind, "/")
		for _, has := range []string{jsonType, yamlType, textType} {
			if want.kind != has && want.kind != "*/*" && !(want.kind == main+"/*" && strings.HasPrefix(has, main+"/")) {
				continue
			}
			plain := as+g+v == ""
			if has == textType && plain {
				return has, ""
			}
			if has != textType && as == kind && g == zGroup && slices.Contains(zVersions, v) {
				return has, v
			}
		}
	}
	return "", ""
}
