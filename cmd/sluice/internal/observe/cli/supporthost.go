package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/sluice-lb/sluice/cmd/sluice/internal/observe/api"
)

// kernelSettings are those of the kernel that decide about connections, below /proc/sys. Stars stand for any.
var kernelSettings = []string{"kernel/osrelease", "kernel/version", "fs/file-nr", "fs/nr_open", "net/core/somaxconn",
	"net/core/netdev_max_backlog", "net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding",
	"net/ipv4/ip_local_port_range", "net/ipv4/ip_local_reserved_ports", "net/ipv4/tcp_tw_reuse",
	"net/ipv4/tcp_max_syn_backlog", "net/ipv4/tcp_early_demux", "net/ipv4/tcp_rmem", "net/ipv4/tcp_wmem",
	"net/ipv4/conf/all/rp_filter", "net/ipv4/conf/all/route_localnet", "net/ipv4/conf/all/arp_ignore",
	"net/ipv4/conf/all/arp_announce", "net/ipv4/vs/*", "net/netfilter/nf_conntrack_*"}

// hostParts are those of this host, and of the process if its number is not 0.
func hostParts(pid int) []part {
	all := []part{
		{"kernel.txt", settingsOfKernel},
		{"nftables.txt", nftables},
		{"iptables.txt", ours("SLUICE", "iptables-save")},
		{"ip6tables.txt", ours("SLUICE", "ip6tables-save")},
		{"ipset.txt", ours("SLUICE", "ipset", "save")},
	}
	process := "self"
	if pid != 0 {
		process = fmt.Sprint(pid)
		for _, name := range []string{"limits", "status", "cgroup"} {
			all = append(all, part{"process/" + name + ".txt", fileOf("/proc", process, name)})
		}
		all = append(all, part{"process/descriptors.txt", func(context.Context) ([]byte, error) {
			open, err := os.ReadDir(filepath.Join("/proc", process, "fd"))
			return fmt.Appendf(nil, "%d file descriptors are open\n", len(open)), err
		}})
	}
	for _, name := range []string{"sockstat", "sockstat6", "snmp", "netstat", "ip_vs", "ip_vs_stats"} {
		all = append(all, part{"net/" + name + ".txt", fileOf("/proc", process, "net", name)})
	}
	return all
}

// fileOf reads a file. A kernel without virtual servers has no file of them.
func fileOf(path ...string) func(context.Context) ([]byte, error) {
	return func(context.Context) ([]byte, error) {
		f, err := os.Open(filepath.Join(path...))
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return limited(f)
	}
}

func settingsOfKernel(context.Context) ([]byte, error) {
	const root = "/proc/sys/"
	var out bytes.Buffer
	var errs []error
	for _, pattern := range kernelSettings {
		names, _ := filepath.Glob(root + pattern)
		for _, name := range names {
			value, err := os.ReadFile(name)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			fmt.Fprintf(&out, "%s = %s\n", strings.TrimPrefix(name, root), strings.TrimSpace(string(value)))
		}
	}
	return out.Bytes(), errors.Join(errs...)
}

// nftables lists the tables of Sluice.
func nftables(ctx context.Context) ([]byte, error) {
	tables, err := command(ctx, "nft", "list", "tables")
	if err != nil {
		return nil, err
	}
	var out []byte
	for line := range strings.Lines(string(tables)) { // table ip sluice-steering
		words := strings.Fields(line)
		if len(words) != 3 || !strings.HasPrefix(words[2], "sluice") || len(out) > largestPart {
			continue
		}
		text, listErr := command(ctx, "nft", append([]string{"list"}, words...)...)
		out, err = append(out, text...), errors.Join(err, listErr)
	}
	return out, err
}

// ours returns those lines of what a program prints that have a word, and those that say which table they are of.
func ours(word, program string, args ...string) func(context.Context) ([]byte, error) {
	return func(ctx context.Context) ([]byte, error) {
		text, err := command(ctx, program, args...)
		var out []byte
		for line := range bytes.Lines(text) {
			if bytes.Contains(line, []byte(word)) || bytes.HasPrefix(line, []byte("*")) {
				out = append(out, line...)
			}
		}
		return out, err
	}
}

// command returns what a program prints.
func command(ctx context.Context, program string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	var failure bytes.Buffer
	cmd.Stderr = &failure
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	text, readErr := limited(pipe)
	if len(text) > largestPart {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return text, nil // who cuts it off says so
	}
	if err := errors.Join(readErr, cmd.Wait()); err != nil {
		return text, fmt.Errorf("run %s: %w: %s", program, err, strings.TrimSpace(failure.String()))
	}
	return text, nil
}

// metricsPage reads the metrics where the process serves them.
func metricsPage(ctx context.Context, c *api.Client) ([]byte, error) {
	all, err := configOf(ctx, c)
	if err != nil {
		return nil, err
	}
	address := ""
	for _, s := range all {
		if s.Name == "metrics-bind-address" {
			address = s.Value
		}
	}
	if address == "" {
		return nil, errors.New("it has no --metrics-bind-address")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the metrics are answered %s", resp.Status)
	}
	return limited(io.Reader(resp.Body))
}
