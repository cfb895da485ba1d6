package status

import (
	"fmt"
	"io"
	"net/http"
	"net/http/pprof"
	"strconv"
	"time"
)

// configName is the key of kube-proxy's configuration at /configz, and ownName that of what it has no field for.
const (
	configName = "kubeproxy.config.k8s.io"
	ownName    = "sluice"
)

// Info is what the metrics address serves.
type Info struct {
	// Mode is the proxy mode.
	Mode string
	// Metrics answers /metrics.
	Metrics http.Handler
	// Config is the configuration in effect, served as JSON.
	Config any
	// Steering is what steers, served beside it; nil: nothing is said of it.
	Steering any
	// Version and Started are of this process.
	Version string
	Started time.Time
	// Flags are the values in effect, by the names of flags.
	Flags map[string]string
	// Inside is the page and the API; nil: there are none.
	Inside *Inside
	// Profiling adds /debug/pprof and /debug/flags/v.
	Profiling bool
	// SetVerbosity changes how much is logged, as the flag -v does.
	SetVerbosity func(level int)
}

// Handler serves it: /metrics, /proxyMode, /configz, /statusz, /flagz, /healthz, which says only
// that the process answers, and what is Inside.
func (i Info) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", i.Metrics)
	mux.HandleFunc("GET /proxyMode", text(i.Mode))
	mux.HandleFunc("GET /healthz", text("ok"))
	mux.HandleFunc("GET /configz", func(w http.ResponseWriter, _ *http.Request) {
		configs := map[string]any{configName: i.Config}
		if i.Steering != nil {
			configs[ownName] = i.Steering
		}
		writeJSON(w, http.StatusOK, configs)
	})
	mux.HandleFunc("GET /flagz", i.flagz())
	paths := []string{"/configz", "/flagz", "/healthz", "/metrics", "/proxyMode"}
	if i.Inside != nil {
		for _, path := range insidePaths {
			mux.Handle("GET "+path, i.Inside)
		}
		paths = append(paths, "/events", "/service", "/v1")
	}
	if i.Profiling {
		paths = append(paths, "/debug")
	}
	mux.HandleFunc("GET /statusz", i.statusz(paths))
	if !i.Profiling {
		return mux
	}
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("/debug/flags/v", i.putVerbosity)
	return mux
}

func text(s string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		write(w, http.StatusOK, "text/plain; charset=utf-8", s)
	}
}

// putVerbosity takes the new level as the body of a PUT.
func (i Info) putVerbosity(w http.ResponseWriter, r *http.Request) {
	answer := func(code int, text string) { write(w, code, "text/plain", text+"\n") }
	if r.Method != http.MethodPut {
		answer(http.StatusNotAcceptable, "unsupported http method")
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64))
	if err != nil {
		answer(http.StatusBadRequest, "error reading request body: "+err.Error())
		return
	}
	level, err := strconv.ParseInt(string(body), 10, 32)
	if err != nil || level < 0 {
		answer(http.StatusBadRequest, fmt.Sprintf("%q is not a level of verbosity: give 0 or more", body))
		return
	}
	i.SetVerbosity(int(level))
	answer(http.StatusOK, fmt.Sprintf("successfully set klog.logging.verbosity to %d", level))
}
