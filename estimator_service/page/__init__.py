"""The status page: one document, one style, one script in parts. `estimator_service.status_page` puts them together."""
