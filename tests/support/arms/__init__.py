"""Arms, retrievers and answer jobs as tests run them."""
