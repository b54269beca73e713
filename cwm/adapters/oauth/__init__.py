"""OAuth: access tokens checked by signature or introspection."""
