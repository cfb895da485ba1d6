package filewatch

import (
	"maps"
	"os"
	"path/filepath"
)

// interest is what to watch to learn of every change of some paths. A directory is
// watched rather than a file, since editors and kubelet replace files (and links to
// them) by renaming; all paths are absolute and free of links, but for the links that
// are themselves of interest.
type interest struct {
	directories map[string]bool // to watch; true: one of the paths, in which any wanted file matters
	names       map[string]bool // these paths matter: files, links, folders themselves
}

// interestIn returns what paths depend on.
func interestIn(paths []string) interest {
	in := interest{make(map[string]bool), make(map[string]bool)}
	for _, path := range paths {
		target := in.follow(path)
		if stat, err := os.Stat(target); err == nil && stat.IsDir() {
			in.directories[target] = true
		}
	}
	return in
}

// follow notes every symbolic link on the way to path, in whatever part of it,
// and what it leads to, which it returns. That may not exist.
func (in interest) follow(path string) string {
	path, err := filepath.Abs(path)
	if err != nil {
		return path // the working directory is gone; the next look will have to do
	}
	for range 40 { // as many links as Linux follows (path_resolution(7))
		link, target, rest := firstLink(path)
		if link == "" {
			break
		}
		in.name(link)
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(link), target)
		}
		path = filepath.Join(target, rest)
	}
	in.name(path)
	return path
}

// firstLink finds the first part of an absolute path that is a symbolic link.
func firstLink(path string) (link, target, rest string) {
	start := len(filepath.VolumeName(path)) + 1
	for end := start; end <= len(path); end++ {
		if end < len(path) && !os.IsPathSeparator(path[end]) {
			continue
		}
		if target, err := os.Readlink(path[:end]); err == nil {
			return path[:end], target, path[end:]
		}
	}
	return "", "", ""
}

// name notes a path and, as far as the directories to it do not exist, those. What exists
// of them is to be watched.
func (in interest) name(path string) {
	for {
		in.names[path] = true
		parent := filepath.Dir(path)
		if _, err := os.Lstat(parent); err == nil || parent == path {
			whole := in.directories[parent]
			in.directories[parent] = whole // which may be false
			return
		}
		path = parent
	}
}

func (in interest) equal(other interest) bool {
	return maps.Equal(in.directories, other.directories) && maps.Equal(in.names, other.names)
}
