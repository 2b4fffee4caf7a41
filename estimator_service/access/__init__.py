"""Who may do what: TLS, tokens, roles."""
