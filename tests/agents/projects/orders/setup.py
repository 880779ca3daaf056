from setuptools import Extension, setup

setup(ext_modules=[Extension("orders._checksum", ["orders/checksum.c"])])
