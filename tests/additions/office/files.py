"""Office documents, written part by part."""

import zipfile

TYPES = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
#: prefix -> namespace of the parts below
NAMES = {
    "w": "http://schemas.openxmlformats.org/wordprocessingml/2006/main",
    "p": "http://schemas.openxmlformats.org/presentationml/2006/main",
    "a": "http://schemas.openxmlformats.org/drawingml/2006/main",
    "r": TYPES,
    "m": "http://schemas.openxmlformats.org/officeDocument/2006/math",
    "mc": "http://schemas.openxmlformats.org/markup-compatibility/2006",
    "wps": "http://schemas.microsoft.com/office/word/2010/wordprocessingShape",
    "v": "urn:schemas-microsoft-com:vml",
    "c": "http://schemas.openxmlformats.org/drawingml/2006/chart",
    "cx": "http://schemas.microsoft.com/office/drawing/2014/chartex",
    "dgm": "http://schemas.openxmlformats.org/drawingml/2006/diagram",
    "cp": "http://schemas.openxmlformats.org/package/2006/metadata/core-properties",
    "dc": "http://purl.org/dc/elements/1.1/",
}


def xml(root, content):
    """A part with this root element."""
    spaces = " ".join(f'xmlns:{prefix}="{name}"' for prefix, name in NAMES.items())
    return f'<?xml version="1.0" encoding="UTF-8"?><{root} {spaces}>{content}</{root}>'


def links(*targets):
    """A part with relationships: (id, kind, target)."""
    rows = "".join(f'<Relationship Id="{name}" Type="{TYPES}/{kind}" Target="{to}"/>' for name, kind, to in targets)
    return f'<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">{rows}</Relationships>'


def package(path, parts, *, main, title=None):
    """Write the parts (name -> text or bytes) of a document as a ZIP file."""
    parts = {"_rels/.rels": links(("rId1", "officeDocument", main)), **parts}
    if title is not None:
        parts["docProps/core.xml"] = xml("cp:coreProperties", f"<dc:title>{title}</dc:title>")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return path


def word(path, body, *, title=None, **parts):
    """A .docx with this body. parts: kind of a related part -> its text."""
    more = {f"word/{kind}.xml": content for kind, content in parts.items()}
    rels = links(*((f"r{kind}", kind, f"{kind}.xml") for kind in parts))
    whole = {"word/document.xml": xml("w:document", f"<w:body>{body}</w:body>"), "word/_rels/document.xml.rels": rels}
    return package(path, whole | more, main="word/document.xml", title=title)


def said(*texts):
    """A paragraph of a .docx with a run for each text."""
    return f"<w:p>{''.join(run(text) for text in texts)}</w:p>"


def run(text, properties=""):
    return f'<w:r><w:rPr>{properties}</w:rPr><w:t xml:space="preserve">{text}</w:t></w:r>'


def slides(path, *shapes, notes=(), title=None, **more):
    """A .pptx with a slide for each content of a shape tree. notes: number of a slide -> shapes of its notes.

    more: kind of a part that is related to the first slide -> its text.
    """
    notes = dict(notes)
    numbers = range(1, len(shapes) + 1)
    listed = "".join(f"<p:sldId id='{n + 255}' r:id='s{n}'/>" for n in numbers)
    parts = {
        "ppt/presentation.xml": xml("p:presentation", f"<p:sldIdLst>{listed}</p:sldIdLst>"),
        # A presentation does not list its slides in the order of their files' names.
        "ppt/_rels/presentation.xml.rels": links(
            *((f"s{n}", "slide", f"slides/slide{99 - n}.xml") for n in reversed(numbers))
        ),
    }
    for number, content in enumerate(shapes, start=1):
        name = f"slide{99 - number}.xml"
        parts[f"ppt/slides/{name}"] = xml("p:sld", f"<p:cSld><p:spTree>{content}</p:spTree></p:cSld>")
        if number in notes:
            parts[f"ppt/slides/_rels/{name}.rels"] = links(("n", "notesSlide", f"../notesSlides/{name}"))
            tree = f"<p:cSld><p:spTree>{notes[number]}</p:spTree></p:cSld>"
            parts[f"ppt/notesSlides/{name}"] = xml("p:notes", tree)
    if more:
        related = ((f"m{kind}", kind, f"../{kind}.xml") for kind in more)
        parts["ppt/slides/_rels/slide98.xml.rels"] = links(*related)
        parts |= {f"ppt/{kind}.xml": content for kind, content in more.items()}
    return package(path, parts, main="ppt/presentation.xml", title=title)


def shape(*paragraphs):
    """A shape of a slide with text."""
    inside = "".join(f"<a:p><a:r><a:t>{text}</a:t></a:r></a:p>" for text in paragraphs)
    return f"<p:sp><p:txBody><a:bodyPr/>{inside}</p:txBody></p:sp>"


def chart(title, *series, kind="barChart"):
    """A part with a chart. series: (name, categories, values, format of the values), in the order of the points."""
    inside = "".join(
        f"<c:ser><c:tx><c:strRef><c:f>S!$B$1</c:f><c:strCache>{points([name])}</c:strCache></c:strRef></c:tx>"
        f"<c:cat><c:strRef><c:f>S!$A$2</c:f><c:strCache>{points(categories)}</c:strCache></c:strRef></c:cat>"
        f"<c:val><c:numRef><c:numCache><c:formatCode>{code}</c:formatCode>{points(values)}</c:numCache></c:numRef></c:val>"
        "</c:ser>"
        for name, categories, values, code in series
    )
    runs = "".join(f"<a:r><a:t>{text}</a:t></a:r>" for text in title)
    heading = f"<c:title><c:tx><c:rich><a:p>{runs}</a:p></c:rich></c:tx></c:title>"
    return xml("c:chartSpace", f"<c:chart>{heading}<c:plotArea><c:{kind}>{inside}</c:{kind}></c:plotArea></c:chart>")


def points(texts):
    """The points of a chart's axis."""
    return "".join(f'<c:pt idx="{number}"><c:v>{text}</c:v></c:pt>' for number, text in enumerate(texts))
