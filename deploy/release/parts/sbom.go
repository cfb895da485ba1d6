package main

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// object is one of JSON, whose fields are written in the order of their names.
type object map[string]any

const (
	supplier = "Organization: The Sluice Authors"
	home     = "https://github.com/sluice-lb/sluice"
)

// unfit is what an identifier of SPDX may not have.
var unfit = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

// purl returns the package URL of a module.
func (m module) purl() string { return "pkg:golang/" + m.Path + "@" + m.Version }

// id returns the identifier of a module in SPDX.
func (m module) id() string { return "SPDXRef-" + unfit.ReplaceAllString(m.Path+"-"+m.Version, "-") }

// hash returns the SHA-256 of go.sum in hexadecimal digits; empty: there is none.
func (m module) hash() string {
	text, ok := strings.CutPrefix(m.Sum, "h1:")
	if !ok {
		return ""
	}
	sum, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return ""
	}
	return hex.EncodeToString(sum)
}

// digest identifies the modules, for names that only these have.
func (r *release) digest() string {
	h := sha256.New()
	for _, m := range r.Modules {
		fmt.Fprintln(h, m.Path, m.Version, m.Sum)
	}
	fmt.Fprintln(h, r.Version)
	return hex.EncodeToString(h.Sum(nil))
}

// spdx returns the list of parts in SPDX 2.3.
func (r *release) spdx() object {
	pack := func(m module) object {
		o := object{
			"name": m.Path, "SPDXID": m.id(), "versionInfo": m.Version, "downloadLocation": "NOASSERTION",
			"filesAnalyzed": false, "copyrightText": "NOASSERTION",
			"licenseConcluded": m.License, "licenseDeclared": m.License,
			"externalRefs": []object{
				{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": m.purl()},
			},
		}
		if h := m.hash(); h != "" { // the checksum of a module's files, as go.sum has it
			o["comment"] = "go.sum: " + m.Sum
		}
		return o
	}
	self := pack(r.Self)
	self["supplier"], self["primaryPackagePurpose"] = supplier, "APPLICATION"
	packages := []object{self}
	relation := func(from, kind, to string) object {
		return object{"spdxElementId": from, "relationshipType": kind, "relatedSpdxElement": to}
	}
	relations := []object{relation("SPDXRef-DOCUMENT", "DESCRIBES", r.Self.id())}
	for _, m := range r.Modules {
		packages = append(packages, pack(m))
		relations = append(relations, relation(r.Self.id(), "DEPENDS_ON", m.id()))
	}
	name := "sluice-" + r.Version
	return object{
		"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": name,
		"documentNamespace": home + "/spdx/" + name + "-" + r.digest(),
		"creationInfo":      object{"created": r.Time.Format(time.RFC3339), "creators": []string{supplier}},
		"packages":          packages, "relationships": relations,
	}
}

// cycloneDX returns the list of parts in CycloneDX 1.5.
func (r *release) cycloneDX() object {
	component := func(m module, kind string) object {
		license := object{"license": object{"id": m.License}}
		if strings.Contains(m.License, " ") {
			license = object{"expression": m.License}
		}
		o := object{
			"type": kind, "name": m.Path, "version": m.Version, "licenses": []object{license},
			"purl": m.purl(), "bom-ref": m.purl(),
		}
		if h := m.hash(); h != "" {
			o["hashes"] = []object{{"alg": "SHA-256", "content": h}}
		}
		return o
	}
	var components []object
	var needs []string
	for _, m := range r.Modules {
		components, needs = append(components, component(m, "library")), append(needs, m.purl())
	}
	d := r.digest()
	return object{
		"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
		"serialNumber": fmt.Sprintf("urn:uuid:%s-%s-5%s-a%s-%s", d[:8], d[8:12], d[13:16], d[17:20], d[20:32]),
		"metadata":     object{"timestamp": r.Time.Format(time.RFC3339), "component": component(r.Self, "application")},
		"components":   components,
		"dependencies": []object{{"ref": r.Self.purl(), "dependsOn": needs}},
	}
}
