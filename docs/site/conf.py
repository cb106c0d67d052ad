"""Sphinx configuration of the site that `make docs` builds (scripts/docs.sh): docs/, and generated pages of the public headers."""
import os

project = "dtensor"
author = copyright = "the dtensor authors"
extensions = ["myst_parser", "breathe"]
breathe_projects = {"dtensor": os.environ.get("DTENSOR_DOXYGEN_XML", "xml")}
breathe_default_project = "dtensor"
breathe_default_members = ("members",)
breathe_show_include = False
myst_heading_anchors = 3
html_theme = "furo"
html_title = "dtensor"
html_static_path = ["static"]
html_css_files = ["wide.css"]
html_search_scorer = os.path.join(os.path.dirname(os.path.abspath(__file__)), "static", "scorer.js")
html_copy_source = False
highlight_language = "none"
exclude_patterns = ["site", "readme.md"]
primary_domain = "cpp"
# Macros in front of declarations.
cpp_id_attributes = ["DTENSOR_API"]
