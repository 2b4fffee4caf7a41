"""The status page: one document, one style, one script in parts. `web.status_page` puts them together."""
