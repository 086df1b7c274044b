"""A hook of mkdocs: links that lead out of docs/ become the names of files, because a site does not hold those."""

import re

OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+(?!reference/)([^)#\s]+)[^)]*\)")


def on_page_markdown(markdown: str, page, **_) -> str:
    up = page.file.src_uri.count("/")

    def named(link: re.Match[str]) -> str:
        outside = link[0].split("](")[1].count("../") > up
        text = f"{link[1]} (`{link[2]}`)" if link[1].strip("`") != link[2] else f"`{link[2]}`"
        return text if outside else link[0]

    return OUTSIDE.sub(named, markdown)
