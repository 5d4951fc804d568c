"""Reports as pages: data as one JSON record, and a document that shows the record without a network."""
