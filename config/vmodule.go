package config

import logsapi "k8s.io/component-base/logs/api/v1"

// SetVModule reads what kube-proxy's --vmodule takes: "pattern=N,pattern=N".
func SetVModule(c *Configuration, text string) error {
	return logsapi.VModuleConfigurationPflag(&c.Logging.VModule).Set(text)
}
