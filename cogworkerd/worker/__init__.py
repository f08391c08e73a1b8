"""What runs in a child: fetch, report, perform, report, settle, report."""
