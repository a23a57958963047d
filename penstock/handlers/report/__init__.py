"""The handler `Report`, and the parts of pages about runs that `penstock report` is made of too."""

from penstock.handlers.report.handler import Report as Report
