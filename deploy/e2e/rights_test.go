package e2e

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// base is where the manifests are that are shipped.
const base = "../base"

// account is the service account that the shipped ClusterRoleBinding names.
type account struct{ namespace, name string }

func (a account) user() string { return "system:serviceaccount:" + a.namespace + ":" + a.name }

// grant makes the account and gives it the rights of the shipped manifests, and none
// besides.
func (c *control) grant() error {
	a, err := c.account()
	if err != nil {
		return err
	}
	ctx := context.Background()
	_, err = c.admin.CoreV1().ServiceAccounts(a.namespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: a.name}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	role, binding, err := shippedRole()
	if err != nil {
		return err
	}
	if _, err = c.admin.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	if _, err = c.admin.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return nil
}

func (c *control) account() (account, error) {
	_, binding, err := shippedRole()
	if err != nil {
		return account{}, err
	}
	subject := binding.Subjects[0]
	if subject.Namespace == "" { // kustomize sets it
		subject.Namespace = metav1.NamespaceSystem
	}
	return account{subject.Namespace, subject.Name}, nil
}

// account is that of the lab's Sluice.
func (l *lab) account() (account, error) {
	if l.as != nil {
		return *l.as, nil
	}
	return l.control.account()
}

// shippedRole reads the ClusterRole and its binding from the manifests.
func shippedRole() (role *rbacv1.ClusterRole, binding *rbacv1.ClusterRoleBinding, err error) {
	files, err := filepath.Glob(filepath.Join(base, "*.yaml"))
	if err != nil {
		return nil, nil, err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, nil, err
		}
		for document := range strings.SplitSeq(string(text), "\n---\n") {
			var meta metav1.TypeMeta
			if err := yaml.Unmarshal([]byte(document), &meta); err != nil {
				return nil, nil, fmt.Errorf("read %s: %w", file, err)
			}
			switch meta.Kind {
			case "ClusterRole":
				role = new(rbacv1.ClusterRole)
				err = yaml.UnmarshalStrict([]byte(document), role)
			case "ClusterRoleBinding":
				binding = new(rbacv1.ClusterRoleBinding)
				err = yaml.UnmarshalStrict([]byte(document), binding)
			}
			if err != nil {
				return nil, nil, fmt.Errorf("read %s: %w", file, err)
			}
		}
	}
	if role == nil || binding == nil || len(binding.Subjects) != 1 {
		return nil, nil, errors.New("the shipped manifests have no ClusterRole with a ClusterRoleBinding to one account")
	}
	for i := range binding.Subjects {
		if binding.Subjects[i].Namespace == "" {
			binding.Subjects[i].Namespace = metav1.NamespaceSystem
		}
	}
	return role, binding, nil
}

// token asks for a token of an account; deleting the Secret of this name revokes it.
func (c *control) token(ctx context.Context, a account, secret string) (string, error) {
	bound, err := c.admin.CoreV1().Secrets(a.namespace).Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: secret}}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	request := &authv1.TokenRequest{Spec: authv1.TokenRequestSpec{
		BoundObjectRef: &authv1.BoundObjectReference{Kind: "Secret", APIVersion: "v1", Name: bound.Name, UID: bound.UID}}}
	got, err := c.admin.CoreV1().ServiceAccounts(a.namespace).CreateToken(ctx, a.name, request, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return got.Status.Token, nil
}

// kubeconfig returns the text of a kubeconfig that reads the token from a file.
func (c *control) kubeconfig(tokenFile string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://%s", certificate-authority-data: %s}}]
users: [{name: u, user: {tokenFile: %s}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, apiAddr, base64.StdEncoding.EncodeToString(c.ca), tokenFile)
}

// checkRequests reads the API server's own record of what Sluice has asked for, and
// fails the test if it was refused anything, or if there is no record.
func (l *lab) checkRequests() {
	l.t.Helper()
	a, err := l.account()
	l.check(err)
	f, err := os.Open(l.path("audit.log"))
	l.check(err)
	defer f.Close()
	_, err = f.Seek(l.audited, io.SeekStart)
	l.check(err)
	asked, answered := make(map[string]int), make(map[string]bool)
	for decoder := json.NewDecoder(f); ; {
		var event struct {
			Verb           string
			User           struct{ Username string }
			ObjectRef      struct{ Resource string }
			ResponseStatus struct{ Code int }
		}
		if err := decoder.Decode(&event); errors.Is(err, io.EOF) {
			break
		} else if err != nil { // a server that was killed while it wrote
			break
		}
		if event.User.Username == a.user() {
			asked[fmt.Sprintf("%s %s: %d", event.Verb, event.ObjectRef.Resource, event.ResponseStatus.Code)]++
			answered[event.ObjectRef.Resource] = answered[event.ObjectRef.Resource] || event.ResponseStatus.Code == 200
		}
	}
	l.t.Logf("Sluice has asked the API server to: %v", asked)
	for what := range asked {
		// A server that has just started forbids everything until it has read its roles.
		request, forbidden := strings.CutSuffix(what, ": 403")
		if _, resource, _ := strings.Cut(request, " "); forbidden && !answered[resource] && !l.mayBeForbidden {
			l.t.Errorf("the API server forbade Sluice to %s", what)
		}
	}
}
