"""Tests of ddpdoctor/scripts."""
