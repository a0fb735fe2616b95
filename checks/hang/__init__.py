"""Why a running job hangs."""
