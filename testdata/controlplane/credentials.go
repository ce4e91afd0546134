package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// credentials are the files by which clients and server know each other. They
// are made once and outlive the process, so that clients and their tokens
// outlive it too.
type credentials struct {
	tokenFile  string // for --token-auth-file, holds the administrator
	accountKey string // signs ServiceAccount tokens
	certDir    string // the API server keeps its certificate here
	kubeconfig string
	token      string // the administrator's
}

// openCredentials reads the credentials in dir and makes those that are missing.
// It removes the kubeconfig: its presence means that the server is ready.
func openCredentials(dir string) (*credentials, error) {
	c := &credentials{
		tokenFile:  filepath.Join(dir, "tokens.csv"),
		accountKey: filepath.Join(dir, "service-account.key"),
		certDir:    filepath.Join(dir, "certs"),
		kubeconfig: filepath.Join(dir, "kubeconfig"),
	}
	if err := os.Remove(c.kubeconfig); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove the kubeconfig of an earlier run: %w", err)
	}
	tokens, err := readOrMake(c.tokenFile, newAdministrator)
	if err != nil {
		return nil, fmt.Errorf("prepare the administrator's token: %w", err)
	}
	c.token, _, _ = strings.Cut(string(tokens), ",")
	if _, err := readOrMake(c.accountKey, newAccountKey); err != nil {
		return nil, fmt.Errorf("prepare the key of ServiceAccount tokens: %w", err)
	}
	return c, nil
}

// newAdministrator is a line of --token-auth-file. Its group passes every
// authorizer.
func newAdministrator() ([]byte, error) {
	return []byte(rand.Text() + ",admin,admin,system:masters\n"), nil
}

func newAccountKey() ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

// writeKubeconfig says how to reach the server at url as its administrator, and
// returns the file's path. The certificate and token are in it, so it may be
// copied elsewhere.
func (c *credentials) writeKubeconfig(url string) (string, error) {
	ca, err := os.ReadFile(filepath.Join(c.certDir, "apiserver.crt"))
	if err != nil {
		return "", fmt.Errorf("read the server's certificate: %w", err)
	}
	const name = "controlplane"
	text, err := clientcmd.Write(api.Config{
		Clusters:       map[string]*api.Cluster{name: {Server: url, CertificateAuthorityData: ca}},
		AuthInfos:      map[string]*api.AuthInfo{name: {Token: c.token}},
		Contexts:       map[string]*api.Context{name: {Cluster: name, AuthInfo: name}},
		CurrentContext: name,
	})
	if err != nil {
		return "", fmt.Errorf("encode the kubeconfig: %w", err)
	}
	return c.kubeconfig, writeWhole(c.kubeconfig, text)
}

func readOrMake(name string, content func() ([]byte, error)) ([]byte, error) {
	data, err := os.ReadFile(name)
	if !errors.Is(err, fs.ErrNotExist) {
		return data, err
	}
	if data, err = content(); err != nil {
		return nil, err
	}
	return data, writeWhole(name, data)
}

// writeWhole makes the file appear with all of its content or not at all.
func writeWhole(name string, data []byte) error {
	if err := os.WriteFile(name+".new", data, 0o600); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}
