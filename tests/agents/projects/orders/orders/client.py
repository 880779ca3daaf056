import requests
import asyncio
import unittest.mock
import xml.dom.minidom
import sqlite3


def fetch(url, token):
    return requests.get(f"{url}/orders", headers={"authorization": f"Bearer {token}"}, timeout=5).json()
