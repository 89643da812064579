"""The ten lines that somebody would write instead of `clusterdp submit --dry-run`: VALUES.yaml FOLDER TEMPLATE."""

import sys

import jinja2
from omegaconf import OmegaConf

values, folder, template = sys.argv[1:]
config = OmegaConf.to_container(OmegaConf.load(values))
environment = jinja2.Environment(loader=jinja2.FileSystemLoader(folder), trim_blocks=True, lstrip_blocks=True)
environment.comment_start_string, environment.comment_end_string = "{*", "*}"  # bash owns {#
environment.keep_trailing_newline = True
sys.stdout.write(environment.get_template(template).render(config))
