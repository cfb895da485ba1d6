package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
)

const (
	// bulkFrom is how many Services are written into etcd at once. The API server takes 100 to 200 a second.
	bulkFrom = 1000

	perTransaction = 96    // of etcd's 128 (--max-txn-ops)
	perNetwork     = 62500 // Services in a /16 of cluster IPs, or of endpoints
)

// bulkPatience is how long the control plane may take over what was written.
const bulkPatience = 3 * time.Minute

// stored is an object as the API server stores it.
type stored struct {
	key, path string // in etcd and in the API
	value     []byte
}

// bulk writes Services, which differ from one that the API server has made as if it had made them, with their
// EndpointSlices and IPAddresses, in the place of the API server.
func (m *many) bulk(like, from int) {
	m.t.Helper()
	service, err := m.admin.CoreV1().Services(m.namespace).Get(m.ctx, manyName(like), metav1.GetOptions{})
	m.check(err)
	slice, err := m.admin.DiscoveryV1().EndpointSlices(m.namespace).Get(m.ctx, manyName(like)+sliceSuffix, metav1.GetOptions{})
	m.check(err)
	ip, err := m.admin.NetworkingV1().IPAddresses().Get(m.ctx, service.Spec.ClusterIP, metav1.GetOptions{})
	m.check(err)
	for n := range (m.services-1)/perNetwork + 1 {
		cidr := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("many-", n)},
			Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{fmt.Sprintf("10.%d.0.0/16", bulkNet+n)}}}
		_, err := m.admin.NetworkingV1().ServiceCIDRs().Create(m.ctx, cidr, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			continue // since fewer Services were written
		}
		m.check(err)
		m.t.Cleanup(func() {
			m.check(m.admin.NetworkingV1().ServiceCIDRs().Delete(m.ctx, cidr.Name, metav1.DeleteOptions{}))
		})
	}
	// The API server would repair a Service whose address it does not find allocated, ten a second.
	m.storeAll(from, func(i int) (stored, error) { return m.storedAddress(i, ip) })
	m.storeAll(from, func(i int) (stored, error) { return m.storedService(i, service) })
	m.storeAll(from, func(i int) (stored, error) { return m.storedSlice(i, slice) })
}

// storeAll stores an object for each Service from one on, and waits until the API server has heard of them.
func (m *many) storeAll(from int, object func(i int) (stored, error)) {
	m.t.Helper()
	batches := (m.services - from + perTransaction - 1) / perTransaction
	m.inParallel(batches, func(batch int) error {
		var all []stored
		first := from + batch*perTransaction
		for i := first; i < min(first+perTransaction, m.services); i++ {
			o, err := object(i)
			if err != nil {
				return err
			}
			all = append(all, o)
		}
		return m.store(all)
	})
	last, err := object(m.services - 1)
	m.check(err)
	m.within(bulkPatience, func() string { return "the API server has " + last.path }, func() bool {
		get := m.admin.Discovery().RESTClient().Get().AbsPath(last.path).Param("resourceVersion", "0")
		return get.Do(m.ctx).Error() == nil
	})
}

// bulkNet is the second number of the cluster IPs of the first perNetwork Services.
const bulkNet = 97

func (m *many) storedAddress(i int, like *networkingv1.IPAddress) (stored, error) {
	o := like.DeepCopy()
	o.TypeMeta = metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "IPAddress"}
	as(&o.ObjectMeta, &like.ObjectMeta, bulkIP(i), i)
	o.Spec.ParentRef.Name = manyName(i)
	return encoded("ipaddresses/"+o.Name, "/apis/networking.k8s.io/v1/ipaddresses/"+o.Name, o)
}

func (m *many) storedService(i int, like *corev1.Service) (stored, error) {
	o, own := like.DeepCopy(), manyService(i)
	o.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}
	as(&o.ObjectMeta, &like.ObjectMeta, own.Name, i)
	o.Spec.Selector, o.Spec.ClusterIP, o.Spec.ClusterIPs = own.Spec.Selector, bulkIP(i), []string{bulkIP(i)}
	return encoded("services/specs/"+m.namespace+"/"+o.Name, "/api/v1/namespaces/"+m.namespace+"/services/"+o.Name, o)
}

func (m *many) storedSlice(i int, like *discoveryv1.EndpointSlice) (stored, error) {
	o := m.slice(i, 0, m.Pods[1])
	o.TypeMeta = metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}
	labels := o.Labels
	as(&o.ObjectMeta, &like.ObjectMeta, o.Name, i)
	o.Labels = labels
	return encoded("endpointslices/"+m.namespace+"/"+o.Name,
		"/apis/discovery.k8s.io/v1/namespaces/"+m.namespace+"/endpointslices/"+o.Name, o)
}

// bulkIP is the cluster IP of Service i.
func bulkIP(i int) string {
	return fmt.Sprintf("10.%d.%d.%d", bulkNet+i/perNetwork, i/250%250, i%250+1)
}

func encoded(key, path string, o runtime.Object) (stored, error) {
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	value, err := runtime.Encode(info.Serializer, o)
	if err != nil {
		return stored{}, fmt.Errorf("encode %s: %w", path, err)
	}
	return stored{"/registry/" + key, path, value}, nil
}

// as makes an object's metadata those of another, but for what is its own.
func as(o, other *metav1.ObjectMeta, name string, i int) {
	*o = *other.DeepCopy()
	o.Name, o.ResourceVersion, o.UID = name, "", types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", i))
}

// store puts objects into etcd, by its JSON gateway.
func (c *control) store(all []stored) error {
	type put struct {
		Key   []byte `json:"key"`
		Value []byte `json:"value"`
	}
	type op struct {
		RequestPut put `json:"requestPut"`
	}
	var txn struct {
		Success []op `json:"success"`
	}
	for _, s := range all {
		txn.Success = append(txn.Success, op{put{[]byte(s.key), s.value}})
	}
	body, err := json.Marshal(txn)
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{DialContext: c.Router.Dial, DisableKeepAlives: true}, Timeout: patience}
	resp, err := client.Post("http://127.0.0.1:2379/v3/kv/txn", "application/json", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("etcd answers %s: %s", resp.Status, answer)
	}
	return err
}

// quiet is the share of a core, of the control plane, below which it is at rest. To look through 100,000 addresses the
// API server takes a tenth for hours.
const quiet = 0.2

// rest waits until the control plane has nothing to do: what it does after a start, or after much was written, takes
// both cores for seconds.
func (l *lab) rest() {
	l.t.Helper()
	used := func() time.Duration { return l.processorTime(l.etcd.Pid()) + l.processorTime(l.server.Pid()) }
	before := used()
	l.within(bulkPatience, func() string { return "the control plane rests" }, func() bool {
		time.Sleep(time.Second) // what is measured
		now := used()
		took := now - before
		before = now
		return took.Seconds() < quiet
	})
}
